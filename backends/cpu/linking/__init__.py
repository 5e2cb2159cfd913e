"""Object code to a shared object, without a linker on the machine."""
