"""SentencePiece scores as the ordered merges of a byte-pair encoder."""

from __future__ import annotations

from collections.abc import Mapping


def merges_from_scores(vocabulary: Mapping[str, int], pieces: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every split of every piece into two known tokens, pieces with the highest score first.

    `vocabulary` is token -> id of all tokens, `pieces` token -> score of those that text can become. SentencePiece
    (Kudo and Richardson, 2018) joins the adjacent pair whose union scores highest; ranks in that order do the same.
    Splits of one piece are ordered by the ids of their parts, as the original tokenizers' own conversions are.
    """
    merges: list[tuple[str, str]] = []
    for piece in sorted(pieces, key=lambda token: (-pieces[token], vocabulary[token])):
        splits = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        known = [(left, right) for left, right in splits if left in pieces and right in pieces]
        merges.extend(sorted(known, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]])))
    return merges
