"""The end of event time, to which a drain advances the watermark.

When a bounded input ends, some timers would wait for the watermark for ever: those of the last
windows, and all others for which no later row comes. An epoch that drains first handles its rows
like any other. Then, operator by operator, it advances the watermark to the end of event time, so
that all event-time timers fire. Their output reaches later operators as rows of the same epoch, and
event time ends there after these rows. All of it is one epoch: it is published as a whole, or not
at all.

The next epoch's watermark is computed from the rows, as if there had been no drain, so that the
checkpoint can continue with more input. A drain expires no time to live, and fires no
processing-time timers.

Thread safety: a constant.
"""

from __future__ import annotations

#: The end of event time, which is the watermark for a function while a drain fires its timers.
MAX_WATERMARK = (1 << 63) - 1
