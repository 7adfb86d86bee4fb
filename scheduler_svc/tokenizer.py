"""Text to token ids, such that nobody's text can forge a control token.

A control token is an added token that is flagged special, or ends an answer. In text of a caller its spelling is
ordinary characters; only the chat template (and the begin token of a plain text) may write one. How:

- The backend is told to match no special token in text at all (`encode_special_tokens`).
- Each control token gets a stand-in: an added token of this process alone, with a spelling that no caller can know,
  which the backend does match. What the template wrote is respelled with stand-ins, and their ids are mapped back. The
  backend itself does all the splitting, so an honest conversation gets the very ids of its plain rendering.
- Messages are shielded before they are rendered, so that only what the template wrote is respelled; then the shields
  are taken off, and the message is encoded as it is.
- Some vocabularies can build a control token from ordinary pieces ("</s>" from "</" and "s>"). Where that happens,
  the spelling is encoded in two parts.

Encoding takes about 300 bytes of memory a token, so a text that is much too long must not be encoded whole. Its tokens
are first counted piece by piece, until they are too many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenizers import AddedToken
from tokenizers import Tokenizer as BackendTokenizer

from common.errors import InvalidRequest
from scheduler_svc.control_tokens import ControlSpellings
from scheduler_svc.longest_token import longest_token
from scheduler_svc.model_files import ModelFiles
from scheduler_svc.token_bytes import TokenBytes

_PIECE_CHARACTERS = 1 << 16
_BEFORE_A_WORD = "\n"  # keeps SentencePiece from writing the space of a text's beginning
_TOKENS_PER_CUT = 64  # a cut between two pieces makes two tokens of one, and disturbs a few beside it


class Tokenizer:
    """The tokenizer of a model folder; it takes over `files.backend`. Encoding is safe in several threads at once.

    `control_ids` are its control tokens; `longest_token` is None where it is not known.
    """

    def __init__(self, files: ModelFiles) -> None:
        self._backend = backend = files.backend
        self.token_bytes = TokenBytes(backend)
        self.longest_token = longest_token(backend, self.token_bytes)
        self._begin = _begin_ids(backend)
        control = _flag_control_tokens(backend, files.eos_token_ids)
        self.control_ids = frozenset(control.values())
        self._unforgeable = self.control_ids - {_unknown_id(backend)}
        self._spellings = ControlSpellings(list(control))
        added = _add_stand_ins(backend, self._spellings)
        self._break_id = added[self._spellings.break_mark]
        self._real_ids = {added[stand_in]: control[text] for text, stand_in in self._spellings.stand_ins.items()}

    def encode_text(self, text: str, limit: int) -> list[int]:
        """Ids of plain text, after the model's begin token if it adds one.

        Raises `InvalidRequest`, also for long text that has more than `limit` tokens; short text may give more.
        """
        return [*self._begin, *self._encode(text, limit)]

    def check_length(self, text: str, limit: int) -> None:
        """Raise `InvalidRequest` for long plain text whose length alone proves that it has more than `limit` tokens."""
        if self.longest_token is not None and is_long(len(text), limit) and self.longest_token.proves_over(limit, text):
            raise _too_long(limit)

    def check_tokens(self, text: str, limit: int) -> None:
        """Raise `InvalidRequest` for long text that has more than `limit` tokens, without encoding it whole."""
        self.check_length(text, limit)
        if is_long(len(text), limit):
            self._count_tokens(text, limit)

    def encode_rendered(self, rendered: str, limit: int | None) -> list[int]:
        """Ids of a rendered template that may hold shielded text; no begin token is added. Raises as `encode_text`.

        `limit` None: how many tokens it has was looked at before.
        """
        return self._encode(self.unshield(self._spellings.stand_in(rendered)), limit)

    def spellings(self, word: str) -> list[tuple[int, ...]]:
        """Distinct ways in which the tokenizer itself writes `word` within a text: after a space, and after a letter or
        nothing. Raises `InvalidRequest` where the word spells a control token.
        """
        limit = len(word) + len(_BEFORE_A_WORD) + 1  # in characters, which is more than enough
        found = [tuple(self._encode(start + word, limit)) for start in ("", " ")]
        before = self._encode(_BEFORE_A_WORD, limit)
        for start in ("", " "):
            ids = self._encode(_BEFORE_A_WORD + start + word, limit)
            if ids[: len(before)] == before:
                found.append(tuple(ids[len(before) :]))
        return list(dict.fromkeys(filter(None, found)))

    def shield(self, content: str) -> str:
        """`content` of a caller, such that rendering it into a template adds no control token."""
        return self._spellings.shield(content)

    def unshield(self, text: str) -> str:
        """`text` as it was before `shield`."""
        return self._spellings.unshield(text)

    def _encode(self, text: str, limit: int | None) -> list[int]:
        if limit is not None:
            self.check_tokens(text, limit)
        ids = self._backend_ids(text)
        if self._is_forged(ids):
            ids = self._backend_ids(self._spellings.shield(text))
        if self._is_forged(ids):
            raise InvalidRequest("the prompt spells a control token in a way that cannot be told from the token itself")
        real_ids = self._real_ids
        return [real_ids.get(token_id, token_id) for token_id in ids if token_id != self._break_id]

    def _count_tokens(self, text: str, limit: int) -> None:
        count = 0
        for start in range(0, len(text), _PIECE_CHARACTERS):
            count += len(self._backend_ids(text[start : start + _PIECE_CHARACTERS])) - _TOKENS_PER_CUT
            if count > limit:
                raise _too_long(limit)

    def _backend_ids(self, text: str) -> list[int]:
        # Only the batch methods release the GIL; the fast one keeps no offsets.
        ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def _is_forged(self, ids: Sequence[int]) -> bool:
        return not self._unforgeable.isdisjoint(ids)


def is_long(num_characters: int, limit: int) -> bool:
    """Whether that is too much text to be encoded whole only to learn that it has more than `limit` tokens."""
    return num_characters > max(_PIECE_CHARACTERS, 2 * limit)


def _too_long(limit: int) -> InvalidRequest:
    return InvalidRequest(f"the prompt has more than {limit} tokens, all that the model's context holds")


def _flag_control_tokens(backend: BackendTokenizer, eos_token_ids: frozenset[int]) -> dict[str, int]:
    """Spelling -> id of the control tokens, each of which is then flagged special."""
    added = backend.get_added_tokens_decoder()
    control = {token_id: token for token_id, token in added.items() if token.special or token_id in eos_token_ids}
    for token in control.values():
        token.special = True
    backend.add_special_tokens(list(control.values()))
    return {token.content: token_id for token_id, token in control.items()}


def _add_stand_ins(backend: BackendTokenizer, spellings: ControlSpellings) -> Mapping[str, int]:
    """Teach the backend the stand-ins and the break mark; returns spelling -> id of every added token."""
    tokens = [AddedToken(spellings.break_mark, normalized=False)]
    for token in backend.get_added_tokens_decoder().values():
        if (stand_in := spellings.stand_ins.get(token.content)) is not None:
            # `single_word` is left out: a token that the template writes is meant, whatever stands beside it.
            tokens.append(AddedToken(stand_in, lstrip=token.lstrip, rstrip=token.rstrip, normalized=False))
    backend.add_tokens(tokens)
    backend.encode_special_tokens = True
    return {token.content: token_id for token_id, token in backend.get_added_tokens_decoder().items()}


def _begin_ids(backend: BackendTokenizer) -> list[int]:
    """Ids that tokenizer.json puts before plain text. As in transformers 5, tokenizer_config.json has no say in it."""
    bare, whole = (backend.encode("a", add_special_tokens=special).ids for special in (False, True))
    return next((whole[:start] for start in range(len(whole)) if whole[start : start + len(bare)] == bare), [])


def _unknown_id(backend: BackendTokenizer) -> int | None:
    """The token of text that the vocabulary lacks, which any text may give."""
    return backend.token_to_id(getattr(backend.model, "unk_token", None) or "")
