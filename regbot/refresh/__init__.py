"""``regbot baseline refresh``: main is measured beside the anchor, and what may be stored of it is proposed.

It proposes and never pushes: a branch, and the text of a pull request that a person reads.
"""

from regbot.refresh.flow import refresh
from regbot.refresh.night import History, Limits, judge_night
from regbot.refresh.site import Options
from regbot.refresh.words import proposal_text, refresh_page

__all__ = ["History", "Limits", "Options", "judge_night", "proposal_text", "refresh", "refresh_page"]
