"""The machines: devices, the links between them, presets, and what one mesh axis runs over."""
