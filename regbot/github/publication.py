"""Publish one result: make the comment and the check run show the same, strongest result.

GitHub has no conditional write, so two jobs that publish at once may overwrite each other. A job therefore reads and
writes the comment and the check run in rounds, until a whole round changes nothing. If another job has overwritten the
comment with a weaker result, the check run still has the stronger result, and the next round writes it to the comment
again. The same holds for an overwritten check run. If no other job publishes, the second round only reads.

An INVALID measurement keeps the earlier verdict and adds a banner above that verdict (``stamped_text.STRENGTH``). An
earlier verdict against another base is dropped.

Only the check run is trusted, because only regbot's app can change it. Anybody with the role write can edit the
comment. If the comment shows a result that the check run lacks, regbot reads only the id of its workflow run from the
comment, and judges that workflow run again.

A parameter ``github`` has the settings of the table ``[github]``.

A parameter ``current_head`` is the present head of the pull request.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from regbot.github import checks
from regbot.github import sticky_comment as sticky
from regbot.github.checks import HeadChecks
from regbot.github.client import Forge
from regbot.github.comment_thread import CommentThread
from regbot.github.same_head import SameHead
from regbot.github.stamped_text import Stamp, StampedText, select_strongest
from regbot.github.types import Annotation
from regbot.records.config import GitHub

ROUNDS = 8
"""Largest number of rounds. Each further round means that another job has written in the meantime."""


@dataclass(frozen=True)
class Result:
    """A result to publish. A stronger existing result takes precedence."""

    stamped_text: StampedText
    nonce: str
    """Nonce of the measurement; ``checks.STATIC_NONCE`` for a static result."""
    title: str
    """Title of the check run, as plain text."""
    annotations: Sequence[Annotation] = ()
    url: str = ""
    """Page of the workflow run."""
    bases: Sequence[str] | None = None
    """Allowed base commits of a verdict on the head; None allows all."""
    fault: str = ""
    """Traceback for the job's log if regbot failed on the run's artifact; '' if it did not fail."""


@dataclass(frozen=True)
class Publication:
    """What was published."""

    comment: StampedText | None
    """Text of the comment; None for a merge group, which has no comment."""
    current_head: str
    """Present head of the pull request."""
    is_concluded: bool
    """Whether the check run was completed. False if it waits for another measurement."""
    is_retargeted: bool = False
    """Whether publishing ended early, because the base branch of the pull request is no longer that of the result."""


Rejudge = Callable[[Stamp], Result | None]
"""A function that judges the workflow run in a stamp. It returns None if the run has no result for the commit and pull
request in the stamp."""


def publish(
    forge: Forge,
    result: Result,
    github: GitHub,
    rejudge: Rejudge = lambda _: None,
    thread: CommentThread | None = None,
) -> Publication:
    """Publish ``result`` in the check run and the comment. A deleted comment is created again.

    Each round reads the check run and the comment, selects the strongest text for each of them, and writes both.
    ``rejudge`` judges a workflow run again, for example if only the comment shows its result. ``thread`` has the
    comments of the pull request, if the caller has read them already. Raises ForgeError. After an error, another call
    completes the work.
    """
    stamp = result.stamped_text.stamp
    thread = thread or CommentThread(forge, stamp.pr)
    same_head = SameHead(forge, stamp.pr, stamp.head, github)
    judged = _JudgedResults(rejudge, [result])
    has_new_judgement = True
    """Whether this is the first round, or ``judged`` has grown in the previous round."""
    comment_text: StampedText | None = None
    for _ in range(ROUNDS):
        current_head = stamp.head
        is_merge_group = stamp.pr == 0
        if not is_merge_group:
            pull = forge.pull(stamp.pr)
            current_head = pull.head_sha
            if pull.base_ref != stamp.target:
                return Publication(comment=None, current_head=current_head, is_concluded=False, is_retargeted=True)
        head_checks = checks.find(forge, stamp.head, stamp.pr, github.bot)
        result_count = len(judged.results)
        # If the requested measurement is INVALID, the result from before the request stays. Its text lacks declarations
        # from later comments, so it is judged again.
        is_requested_but_invalid = result.nonce == head_checks.pending_nonce and stamp.status == "INVALID"
        previous_text = head_checks.previous_text if is_requested_but_invalid else None
        if previous_text is not None and previous_text.stamp.run != stamp.run:
            judged.judge_again(previous_text.stamp)
        head_results = [candidate for candidate in judged.results if candidate.stamped_text.stamp.head == stamp.head]
        check_texts = _select_check_texts(head_checks, result)
        # A new judgement goes before a published text that is equally strong.
        check_text = _select_strongest(has_new_judgement, head_results, check_texts, stamp.head)
        # A check run that waits for another measurement is not completed here. That measurement completes it.
        own_nonces = [candidate.nonce for candidate in head_results]
        is_concluded = head_checks.pending_nonce in ("", *own_nonces)
        if is_concluded:
            has_changed = _write_check(forge, result, head_results, check_text, head_checks, same_head)
        else:
            has_changed = checks.show_waiting(forge, head_checks)
        if not is_merge_group:
            comment = sticky.find(thread, github.bot, current_head)
            head_text: StampedText | None = check_text
            if current_head != stamp.head:
                head_text = checks.find(forge, current_head, stamp.pr, github.bot).completed_text
            known_texts: list[StampedText | None] = [check_text, head_text]
            # Verify stronger results that only the comment shows: by a check run, or by judging their runs again.
            own_texts = [candidate.stamped_text for candidate in judged.results]
            for claim in _find_unknown_claims(comment, [*known_texts, *own_texts], current_head):
                claimed_text = None
                if claim.head not in (stamp.head, current_head):
                    claimed_text = checks.find(forge, claim.head, stamp.pr, github.bot).completed_text
                if claimed_text is not None and _covers_claim(claimed_text, claim, current_head):
                    known_texts.append(claimed_text)
                else:
                    judged.judge_again(claim)
            has_new_result = has_new_judgement or len(judged.results) > result_count
            comment_text = _select_strongest(has_new_result, judged.results, known_texts, current_head)
            has_changed = sticky.write(thread, github.bot, current_head, comment_text, comment) or has_changed
        has_new_judgement = len(judged.results) > result_count
        if not has_changed and not has_new_judgement:
            break
    return Publication(comment_text, current_head, is_concluded)


@dataclass
class _JudgedResults:
    """The results that this job has judged: the result to publish, and results that were judged again."""

    rejudge: Rejudge
    results: list[Result]
    """The newest judgement first."""
    judged_runs: set[int] = field(default_factory=set)
    """Ids of the workflow runs that were judged again."""

    def judge_again(self, stamp: Stamp) -> None:
        """Judge the workflow run of ``stamp`` again, and add its result if there is one. Each run is judged again only
        once."""
        if stamp.run in self.judged_runs:
            return
        self.judged_runs.add(stamp.run)
        rejudged = self.rejudge(stamp)
        if rejudged is not None:
            self.results.insert(0, rejudged)


def _write_check(
    forge: Forge,
    result: Result,
    head_results: Sequence[Result],
    check_text: StampedText,
    head_checks: HeadChecks,
    same_head: SameHead,
) -> bool:
    """Complete the check run with ``check_text``, and correct the check run of another pull request with the same head.

    Title, annotations and link come from the result in ``head_results`` with this text. If another job has published
    the text, the title of the check run stays, and ``result`` gives the link. Return whether anything changed.
    """
    text_without_banner = replace(check_text, void=None)
    own_result = next((candidate for candidate in head_results if candidate.stamped_text == text_without_banner), None)
    title = head_checks.title or f"{check_text.stamp.status}: see the summary"
    if own_result is not None:
        title = own_result.title
    # The stamps of the verdicts on the other pull requests with the same head.
    peers = same_head.find_peers(head_checks)
    has_changed = checks.write(
        forge,
        check_text,
        head_checks,
        same_head.github,
        title,
        annotations=own_result.annotations if own_result is not None else (),
        url=(own_result or result).url,
        peers=peers,
    )
    return same_head.update_newest_peer(check_text, peers, head_checks) or has_changed


def _select_check_texts(head_checks: HeadChecks, result: Result) -> list[StampedText | None]:
    """Return the result that the check run shows, and the result that it showed before a measurement was requested.

    A verdict is dropped, and is None in the list, if it was judged against another base branch than ``result``, or
    against a base commit that is not in ``result.bases``. If a dropped verdict has the banner of an INVALID
    measurement, that measurement takes its place.
    """
    bases, target = result.bases, result.stamped_text.stamp.target

    def keep_valid(text: StampedText | None) -> StampedText | None:
        """Return ``text`` if it is kept, otherwise the INVALID measurement in its banner, or None."""
        if text is None or bases is None or text.stamp.status == "INVALID":
            return text
        return text if text.stamp.base in bases and text.stamp.target == target else text.void

    return [keep_valid(head_checks.completed_text), keep_valid(head_checks.previous_text)]


def _select_strongest(
    prefer_own: bool, own_results: Sequence[Result], published: Sequence[StampedText | None], current_head: str
) -> StampedText:
    """Return the strongest text of ``own_results`` and ``published``.

    Own results are those that this job has judged. If an own result and a published text are equally strong and recent,
    the own result is chosen with ``prefer_own``, and the published text without it.
    """
    own_texts = [result.stamped_text for result in own_results]
    published_texts = [text for text in published if text is not None]
    texts = [*own_texts, *published_texts] if prefer_own else [*published_texts, *own_texts]
    return select_strongest(texts, current_head)


def _find_unknown_claims(
    comment: sticky.StickyComment | None, known_texts: Sequence[StampedText | None], current_head: str
) -> list[Stamp]:
    """Return the stamps in the comment, and in newer comments of regbot, that promise a stronger result than all known
    texts, or an INVALID measurement that would put a banner above the strongest known text.

    A stamp in a comment is only a claim, because somebody may have edited the comment. ``known_texts`` are trusted. The
    field ``void`` of a text is the INVALID measurement in its banner.
    """
    if comment is None:
        return []
    trusted_texts = [text for text in known_texts if text is not None]
    trusted_stamps = [text.stamp for text in trusted_texts]
    trusted_stamps += [text.void.stamp for text in trusted_texts if text.void is not None]
    claimed_texts: list[StampedText] = []
    for text in comment.claims:
        claimed_texts += [text] if text.void is None else [text, text.void]
    claims = []
    for text in claimed_texts:
        strongest = select_strongest([*trusted_texts, replace(text, void=None)], current_head)
        strongest_stamps = [strongest.stamp]
        if strongest.void is not None:  # the INVALID measurement of the banner above this text
            strongest_stamps.append(strongest.void.stamp)
        if text.stamp not in trusted_stamps and text.stamp in strongest_stamps:
            claims.append(text.stamp)
    return claims


def _covers_claim(known: StampedText, claim: Stamp, current_head: str) -> bool:
    """Return whether the known result is at least as strong as the result that the stamp ``claim`` promises."""
    promised = StampedText(claim, text="")  # only its stamp is ranked
    strongest = select_strongest([known, promised], current_head)
    return known.stamp == claim or strongest.stamp != claim
