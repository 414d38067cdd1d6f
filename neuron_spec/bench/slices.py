"""Built-in prompts by kind of work, for a first look at which kinds pay.

Three a kind: enough to see a difference between kinds, not enough to rely on; `bench` says so. Your
own prompts (`--prompts`) are what counts. In no training or evaluation data of the demo heads.
"""

from __future__ import annotations

from neuron_spec.bench.workload import WorkloadRow

_PASSAGE = (
    "The lighthouse at Point Arven was built in 1871 from granite quarried on the mainland. For "
    "forty years its keeper rowed ashore once a month for oil and flour. In 1911 the lamp was "
    "converted to acetylene and the keeper's house became a weather station. A storm in 1953 broke "
    "the landing stage, and the island has been reached by helicopter since."
)
_MINUTES = (
    "Ana reported that the new boiler saves a fifth of the gas but the contractor is six weeks "
    "late with the pipes. Jonas asked for a second offer. The board agreed to wait until March and "
    "to set aside 4,000 euros for repairs of the roof, which leaked twice in November."
)

_PROMPTS: dict[str, tuple[str, ...]] = {
    "code": (
        "Write a Python function that removes duplicates from a list and keeps the order. Include "
        "a docstring and two examples.",
        "Write a JavaScript class Stack with push, pop, peek and size.",
        "Write an SQL query that lists the ten customers with the highest total of orders in 2023 "
        "from the tables customers(id, name) and orders(id, customer_id, total, placed_at).",
    ),
    "extraction": (
        f"List every year in this text with what happened in it.\n\n{_PASSAGE}",
        f"Extract all persons and amounts of money from these minutes as JSON.\n\n{_MINUTES}",
        "Return the sender, the date and the subject of this mail as three lines.\n\nFrom: "
        "pia@example.org\nDate: 3 May 2024\nSubject: Keys for the workshop\n\nThe keys are with "
        "the porter.",
    ),
    "chat": (
        "My neighbour practises the drums every evening. How can I talk to him about it?",
        "I would like to learn to cook for one person. Where do I start?",
        "What is a good way to remember names at a party?",
    ),
    "summarization": (
        f"Summarize this text in two sentences.\n\n{_PASSAGE}",
        f"Summarize these minutes in three bullet points.\n\n{_MINUTES}",
        f"Give this text a title and one sentence of summary.\n\n{_PASSAGE}",
    ),
    "translation": (
        "Translate to French: The train to Lyon leaves at nine from platform four.",
        "Translate to Spanish: Please close the window before you leave, it may rain tonight.",
        "Translate to German: The museum is free on the first Sunday of every month.",
    ),
    "maths": (
        "A shop sells pens at 3 for 2 euros. How much do 12 pens cost? Show your steps.",
        "Solve 3x + 7 = 25 and check the result.",
        "A garden is 8 m long and 5 m wide. A path of 1 m runs around it. How large is the path?",
    ),
    "rag": (
        f"Answer from the context only.\n\nContext: {_PASSAGE}\n\nQuestion: How is the island "
        "reached today, and why?",
        f"Answer from the context only.\n\nContext: {_MINUTES}\n\nQuestion: What did the board "
        "decide about the roof?",
        f"Answer from the context only; say so if it is not there.\n\nContext: {_PASSAGE}\n\n"
        "Question: Who built the lighthouse?",
    ),
    "creative": (
        "Write the opening of a story about a clock that runs backwards on Sundays.",
        "Write a short poem about fog over a harbour.",
        "Invent three unusual festivals and describe each in two sentences.",
    ),
}

SLICES: dict[str, tuple[WorkloadRow, ...]] = {
    kind: tuple(WorkloadRow([{"role": "user", "content": text}], kind) for text in texts)
    for kind, texts in _PROMPTS.items()
}
"""Kind of work -> its prompts; `creative` is meant for a high temperature."""
