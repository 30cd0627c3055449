class ffi:
    errno: int

class lib:
    @staticmethod
    def create_timer() -> int: ...
    @staticmethod
    def set_timer(descriptor: int, nanoseconds: int) -> int: ...
    @staticmethod
    def kill_with_parent() -> int: ...
