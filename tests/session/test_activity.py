"""What a session does for its client while the hub has nothing to do."""

from __future__ import annotations

import asyncio

from oar_proxy.activity import Activity
from oar_proxy.hublink import HubChannel
from oar_proxy.wire.conversation import Conversation


def test_a_hub_that_skips_is_not_made_to_wait():
    """What was begun before, in the middle of a message perhaps, is not to be interrupted."""

    async def ask():
        sent, unlocked = [], []
        conversation = Conversation(
            on_authentication=bytes, on_key=bytes, on_copy_in=bool, on_ready=bool
        )
        channel = HubChannel(conversation, sent.extend, sent.append, asyncio.Event().wait, bool)

        class Sentinels:
            def __init__(self):
                self.sessions = set()

            async def lock(self):
                conversation.skipping = True  # the work's own question has failed meanwhile
                return 7

            async def unlock(self, key):
                unlocked.append(key)

        activity = Activity(channel, Sentinels())
        activity.begin("simple")
        assert await activity.ask(asyncio.sleep(0.4, "done")) == "done"
        return sent, unlocked

    assert asyncio.run(ask()) == ([], [7])
