"""What is done with a request before it is accepted that takes time."""

from __future__ import annotations

from common.step import ExecutorInfo
from scheduler_svc.form_check import FormCheck
from scheduler_svc.prompts import PromptEncoder, check_room
from scheduler_svc.sampling_limits import check_prompt_logprobs
from scheduler_svc.validation import GenerateCall


async def prepare(call: GenerateCall, model: ExecutorInfo, encoder: PromptEncoder, forms: FormCheck) -> tuple[int, ...]:
    """The prompt of a call in tokens, once it fits and the form of the answer has been tried.

    Raises `InvalidRequest`, and `Unavailable` where the form could not be tried.
    """
    prompt = await encoder.encode(call.prompt, model.vocab_size, model.max_model_len)
    check_room(len(prompt), model.max_model_len)
    check_prompt_logprobs(len(prompt), call.sampling)
    if call.form is not None:
        await forms.check(call.form, model.vocab_size)
    return prompt
