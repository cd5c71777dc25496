"""All disturbances, by their names on the command line."""

from tests.bench.stalls import disturbances
from tests.bench.stalls.branches import BRANCHES
from tests.bench.stalls.crowds import CROWDS
from tests.bench.stalls.disturbance import Disturbance
from tests.bench.stalls.settling import SETTLING

DISTURBANCES: dict[str, type[Disturbance]] = {
    "declares": disturbances.Declares,
    "deletes": disturbances.Deletes,
    "fanout-transient": disturbances.TransientFanout,
    "fanout-durable": disturbances.DurableFanout,
    "fanout-limited": disturbances.LimitedFanout,
    "purge": disturbances.Purge,
    "delete-full": disturbances.DeleteFull,
    "requeue": disturbances.Requeue,
    "nack": disturbances.NackAll,
    "dead-letters": disturbances.RejectAll,
    "history": disturbances.HistoryAcks,
    "close-channel": disturbances.CloseChannel,
    "disconnect": disturbances.Disconnect,
    "expiry": disturbances.ExpireAll,
    "replay": disturbances.Replay,
    "tx": disturbances.Tx,
    "tx-rollback": disturbances.RolledBackTx,
    "tx-acks": disturbances.AckingTx,
    "body": disturbances.LargeBody,
    "limits": disturbances.LengthLimits,
    "binds": disturbances.Binds,
    "delete-bound": disturbances.DeleteBound,
    "delete-exchange": disturbances.DeleteExchange,
    "delete-declare": disturbances.DeleteDeclare,
    "delete-beside": disturbances.DeleteBeside,
    **CROWDS,
    **SETTLING,
    **BRANCHES,
}
