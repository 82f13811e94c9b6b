"""The Triton kernels, and how they are launched. Importing a kernel module imports Triton; importing this package does not."""
