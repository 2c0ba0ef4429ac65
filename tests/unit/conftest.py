import triton_double

triton_double.install()
