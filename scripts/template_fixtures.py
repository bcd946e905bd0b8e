"""Writes crates/text/tests/fixtures/templates.json: what Jinja2 makes of the test templates.

The environment is the one in which Hugging Face transformers renders chat templates, without
`strftime_now` (a rendering must not depend on the day). Needs `pip install jinja2`:
    python3 scripts/template_fixtures.py crates/text/tests/fixtures [more templates ...]
"""

import json
import pathlib
import sys

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "function": {"name": "add", "arguments": {"y": 2.5, "x": [1, None]}}}
    ],
}
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds <two> 'numbers' & \"more\"; naïve ☃",
        "parameters": {"type": "object", "properties": {"x": {"type": "array"}}, "required": []},
    },
}

# Sorted as the test's JSON reader sorts them.
TOOL = json.loads(json.dumps(TOOL, sort_keys=True))
CALL["tool_calls"] = json.loads(json.dumps(CALL["tool_calls"], sort_keys=True))

CONVERSATIONS = [
    {"messages": [{"role": "user", "content": "Hi <there> & 'you'"}]},
    {
        "messages": [
            {"role": "system", "content": " Be brief. "},
            {"role": "user", "content": " What is a cat?\n"},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\nAn animal."},
            {"role": "user", "content": "日本語 🐈"},
        ],
        "enable_thinking": False,
    },
    {
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two", "reasoning_content": "\ncounting\n"},
        ],
        "add_generation_prompt": False,
    },
    {
        "messages": [
            {"role": "user", "content": "Add them."},
            CALL,
            {"role": "tool", "content": "3.5"},
        ],
        "tools": [TOOL],
    },
    {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": " Look: "},
                    {"type": "image"},
                    {"type": "text", "text": "what is it?"},
                ],
            }
        ]
    },
    {"messages": [{"role": "assistant", "content": "I begin."}]},
]


def environment():
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def raise_exception(message):
        raise TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    return made


def render(template, conversation):
    variables = {"add_generation_prompt": True, "bos_token": "<bos>", "eos_token": "<eos>"}
    try:
        return {"text": template.render(**(variables | conversation))}
    except Exception as error:  # What fails there must fail here, for whatever reason.
        return {"error": str(error)}


def main():
    folder = pathlib.Path(sys.argv[1])
    paths = sorted((folder / "templates").glob("*.jinja")) + [pathlib.Path(p) for p in sys.argv[2:]]
    cases = []
    for path in paths:
        template = environment().from_string(path.read_text(encoding="utf-8"))
        results = [render(template, conversation) for conversation in CONVERSATIONS]
        cases.append({"template": path.name, "results": results})
    value = {"conversations": CONVERSATIONS, "cases": cases}
    text = json.dumps(value, ensure_ascii=True, indent=1)
    (folder / "templates.json").write_text(text + "\n", encoding="ascii")


main()
