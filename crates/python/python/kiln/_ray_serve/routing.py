"""Which replica gets a request."""

from __future__ import annotations

import random

from ray.serve.request_router import MultiplexMixin, PendingRequest, RequestRouter, RunningReplica

#: A replica with its model loaded is preferred while it has fewer requests than this: reading weights takes as long as some images.
_PREFERRED = 8


class ReplicaChoice(MultiplexMixin, RequestRouter):
    """Ray Serve's choice of a replica for a call of `KilnReplica.stream`.

    That is the replica that the call names in `replica`, where it runs. Otherwise it is one that has the model, or any, and of
    several the one with the fewest requests.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Replicas to choose from: the second list where the first has no place."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        named = pending_request.kwargs.get("replica")
        only = [one for one in candidate_replicas if one.replica_id.unique_id == named]
        if only:
            return [only]
        model = pending_request.metadata.multiplexed_model_id
        # Ray takes the first of several that have equally few requests.
        every = random.sample(candidate_replicas, len(candidate_replicas))
        return [[one for one in every if self._is_preferred(one, model)], every]

    def _is_preferred(self, replica: RunningReplica, model: str) -> bool:
        if not model:
            return False
        requests = self.replica_queue_len_cache.get(replica.replica_id)
        return model in replica.multiplexed_model_ids and (requests is None or requests < _PREFERRED)
