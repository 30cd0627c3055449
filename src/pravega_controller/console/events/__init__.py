"""Events of a stream: reading some of them, showing their bytes, writing one."""
