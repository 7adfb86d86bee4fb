"""The form of an answer, as an option of a request."""

from __future__ import annotations

import json

from citybus.v1 import generation_pb2 as pb

FORMS = ("json_schema", "json_object", "regex", "choice", "grammar")
"""Names of the options, which are the names of the fields too."""


def set_form(request: pb.GenerateRequest, name: str, value: object) -> None:
    """Set the one form of the answer. Raises `ValueError` for a second one, and `TypeError` as protobuf does."""
    if request.HasField("structured_output"):
        raise ValueError("an answer has one form: give one of " + ", ".join(FORMS))
    if name == "json_schema" and not isinstance(value, str):
        value = json.dumps(value)
    if name == "choice":
        value = pb.Choice(texts=value)  # type: ignore[arg-type]
    request.structured_output.CopyFrom(pb.StructuredOutput(**{name: value}))  # type: ignore[arg-type]
