"""The GPU driver's packages and its module: what apt would do, the files kept, the way back."""
