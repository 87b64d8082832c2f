from typing import Any


class DriverConfig:
    _active: Any = None

    @property
    def active(self) -> Any:
        if self._active is None:
            raise RuntimeError("0 active drivers ([]). There should only be one.")
        return self._active

    def set_active(self, driver: Any) -> None:
        self._active = driver


driver = DriverConfig()
