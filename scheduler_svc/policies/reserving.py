"""What the policies reserve that hold memory the old way."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler_svc.core.policy import SequenceView, StepView


@dataclass(frozen=True, slots=True)
class ReservingParameters:
    """What is reserved.

    Attributes:
        longest_reply: tokens reserved for every reply, as by a server that cannot know how long it gets; who asked for
            more gets more. 0 is what each asked for.
    """

    longest_reply: int = 0

    def __post_init__(self) -> None:
        if self.longest_reply < 0:
            raise ValueError("longest_reply must not be less than 0")

    def blocks(self, view: SequenceView, step: StepView) -> int:
        """Blocks for the prompt and the longest reply; at most the whole pool."""
        tokens = view.num_prompt_tokens + max(self.longest_reply, view.max_output_tokens)
        return min(-(-tokens // step.block_size), step.num_blocks)
