"""What task mappings become: layouts, code, and proofs about shared memory."""
