"""All attacks, by name."""

from tests.bench.attacks import members, strangers
from tests.bench.attacks.attack import Attack

ATTACKS: dict[str, type[Attack]] = {
    "slow-handshakes": strangers.SlowHandshakes,
    "flood": strangers.Flood,
    "idle": strangers.Idle,
    "wrong-logins": strangers.WrongLogins,
    "random-bytes": strangers.RandomBytes,
    "huge-table": strangers.HugeTable,
    "before-login": strangers.BodiesBeforeLogin,
    "unread-returns": members.UnreadReturns,
    "unread-deliveries": members.UnreadDeliveries,
    "unread-gets": members.UnreadGets,
    "recovers": members.Recovers,
    "channels": members.Channels,
    "half-bodies": members.HalfBodies,
    "small-frames": members.SmallFrames,
    "open-transactions": members.OpenTransactions,
    "headers": members.DifferentHeaders,
    "carbon-copies": members.CarbonCopies,
    "wildcards": members.Wildcards,
    "cascade": members.Cascade,
    "declares": members.BulkDeclares,
}
