"""Fields that clients are known to send and that this server refuses, each with the reason it gives.

docs/api.md lists them; a test compares. A field that is neither here nor in a body's model is refused as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

REFUSED_FIELDS: Mapping[str, str] = {
    "audio": "this server answers with text only",
    "backend_sampling": "there is one sampler; leave it out",
    "best_of": "one answer is generated for each request; leave it out",
    "from_slot": "sessions are named, slots are not: send 'from_session'",
    "function_call": "deprecated by OpenAI; send 'tool_choice'",
    "functions": "deprecated by OpenAI; send 'tools'",
    "grammar": "send 'response_format' with a JSON schema or a regex",
    "guided_json": "send 'response_format' with type json_schema",
    "guided_regex": "send 'response_format' with type regex",
    "json_schema": "send 'response_format' with type json_schema",
    "moderation": "there is no moderation here; leave it out",
    "prediction": "predicted outputs are not implemented; leave it out",
    "repetition_penalty": "send 'repeat_penalty'",
    "shared_pool_slot": "pools are named by 'pool_id', never by a slot",
    "suffix": "text is generated at the end only",
    "verbosity": "ask for short or long answers in the messages",
    "web_search_options": "there is no web search here; leave it out",
}
