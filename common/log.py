"""Structured logs: lines for people on a terminal, JSON lines anywhere else, on stderr.

Modules take `log = structlog.get_logger()` and log an event with named values; what `structlog.contextvars` binds
(`request_id`, `step`) is added to each. Prompt text is never logged: so that no object can bring it in, a value that
is not plain data is logged as the name of its class, and tracebacks come without local variables.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger


def configure(service: str, level: str) -> None:
    """Set up the logs of this process, once, at its start.

    `service` goes into every line; `level` is "debug", "info", "warning" or "error". The standard library's loggers,
    which our dependencies use, come out in the same form from WARNING on.
    """

    def name_service(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event["service"] = service
        return event

    prepare: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        name_service,
    ]
    render = _console() if sys.stderr.isatty() else _json()
    structlog.configure(
        processors=[*prepare, *render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=prepare, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render]
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def _console() -> list[Processor]:
    return [
        structlog.processors.format_exc_info,
        _only_plain,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]


def _json() -> list[Processor]:
    tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
    return [structlog.processors.ExceptionRenderer(tracebacks), _only_plain, structlog.processors.JSONRenderer()]


def _only_plain(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {key: _plain(value) for key, value in event.items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return type(value).__name__
