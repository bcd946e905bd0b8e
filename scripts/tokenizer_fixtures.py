"""Writes the expected identifiers that the tokeniser tests compare with.

The reference is Hugging Face `tokenizers`, with the model, splitter and normaliser that each
family's tokenizer.json has, over the vocabulary of the model file itself. Needs
    pip install tokenizers gguf numpy
and is run by hand; the tests read only the small JSON files that it writes:
    python3 scripts/tokenizer_fixtures.py crates/text/tests/fixtures \
        [--smollm2 FILE.gguf] [--gemma FILE.gguf] [--qwen2 FILE.tiktoken] [--llama3 tokenizer.json]
        [--vocabularies FOLDER]
`--vocabularies` also writes the Qwen and Llama 3 vocabularies as GGUF files without tensors.
"""

import argparse
import base64
import json
import pathlib

import gguf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, trainers

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

TEXTS = [
    "",
    " ",
    "  ",
    "a",
    " a",
    "a ",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "I'm sure they'll say we've don't 'cause she'd've it's you're O'Reilly's 'tis",
    "I'M SURE THEY'LL SAY WE'VE DON'T SHE'D IT'S YOU'RE 'S'T'RE'VE'M'LL'D",
    "long \u017f: it'\u017f and K: \u212a",
    "1234567890 3.14159 1,000,000 0xDEADBEEF 1e-10 12 345 6789 ½²③Ⅷ ٣٤٥ ৪২ 〇 𝟘𝟙",
    "def f(x: int) -> str:\n    if x <= 0:\n\t\treturn f\"{x!r}\"  # comment\n\n\nclass A:\n    pass\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] << 2; } // done\r\n\r\n#include <stdio.h>\r\n",
    "{\"key\": [1, 2.5, null, true], \"nested\": {\"a\": \"b\\n\"}}",
    "   leading and trailing   ",
    "tabs\t\tand  double   triple    quad     spaces",
    "\n",
    "\n\n\n",
    "a\n\n b\n \n\t\nc \n d\n\n",
    "line\r\nline\rline\n\r\n\r",
    " \u00a0\u2003\u3000x\u2028y\u2029z\u0085w\ufeff",
    "\t \t x",
    "café naïve façade Ångström — “quotes” ‘single’ … €100 £20 ¥5",
    "cafe\u0301 nai\u0308ve A\u030angstro\u0308m o\u0323\u0302 \u0301alone",
    "ﬁ ﬂ ŀ Ĳ ß ẞ İ ı ſ Ⅻ ㎏ ℃ ½",
    "Zażółć gęślą jaźń; Příliš žluťoučký kůň; Ünïcödé",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "שלום עולם, נִקּוּד",
    "مرحبا بالعالم، كيف حالك؟ ١٢٣ اَلْعَرَبِيَّةُ",
    "नमस्ते दुनिया, क्षत्रिय हिन्दी में",
    "สวัสดีชาวโลก ภาษาไทยไม่มีเว้นวรรค",
    "こんにちは世界。カタカナとひらがな、漢字123。",
    "你好，世界！今天天气怎么样？𠀀𪚥㐀",
    "안녕하세요 세계! 한국어 텍스트입니다.",
    "ᄒ\u1161ᆫ NFD hangul: \u1112\u1161\u11ab",
    "😀 😃😄 👍🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵 ☺️ 1️⃣ ❤️‍🔥",
    "🤦🏼‍♂️!!! ¯\\_(ツ)_/¯ ಠ_ಠ (╯°□°)╯︵ ┻━┻",
    "Z̸̡̢a̷l̶g̵o̴ t̸̛e̷x̶t̵",
    "\u212b \u2126 \uf900 \u0958 \ufb1d \u09c7\u09be o\u0302\u0323 \u1112\u1161\u11ab\uac00\u11a8 \U0001d160",
    "\u200b\u200c\u200d\u2060zero\u200bwidth\u202eRTL\u202c",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|>",
    "a<|endoftext|>b <|endoftext|> c",
    "<|im_start|><|im_end|><|im_start|>",
    "<|im_start <|im_end| |im_end|> <<|im_end|>> <|im_<|im_end|>",
    "<bos><eos><start_of_turn>user\nHi<end_of_turn>\n<table><tr><td>x</td></tr></table>",
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nHi<|eot_id|>",
    "<s>[INST] x [/INST]</s> <unk> <pad> <0x0A> <unused5>",
    "</s> </ s> > </ >\u2581</",
    "\u2581under\u2581score \u2581\u2581 x_y__z ___",
    "a" * 60,
    "ab" * 50 + "c",
    "aaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbb  cccccccccccccccc",
    "-" * 70 + "=" * 40 + "*" * 20 + "#" * 9,
    " " * 40 + "x",
    "\n" * 25 + "x",
    "\t" * 20 + "x",
    "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft",
    "pneumonoultramicroscopicsilicovolcanoconiosisPneumonoultramicroscopicsilicovolcanoconiosis",
    "https://example.com/path/to/page?query=1&x=%20y#frag user@example.org C:\\Windows\\System32",
    "$E = mc^2$ \\frac{a}{b} ∑_{i=0}^{∞} x_i ≤ ∫ f(x)dx → ∀ε>0 ∃δ",
    "\x00\x01\x02\x1f\x7f\u0080\u009f",
    "\U0010ffff \ue000 \ufffd \ufffe",
    "MixedCASEWords camelCaseHTTPServer snake_case_name kebab-case-name CONSTANT_NAME",
    "A.B.C. U.S.A. e.g., i.e. Mr. & Mrs. O’Neil’s ‘90s rock’n’roll",
    "....... !!!??? ,,, ;;; ((())) [[[]]] {{{}}}",
    "Ａｌｐｈａ　ｆｕｌｌｗｉｄｔｈ １２３",
    "ǅ ǈ ʰ ˢ ª º ⁿ ₂ ⅓ ↉ ௰ ፩ 一二三 ㊀ ㈠",
]


def byte_level(vocabulary, merges, split, nfc=False, ignore_merges=False):
    model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=ignore_merges)
    tokenizer = Tokenizer(model)
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    if split == "digits":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
        )
    elif split is None:
        tokenizer.pre_tokenizer = level
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(split), "isolated"), level]
        )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def pieces(vocabulary, merges, prefix, unknown):
    model = models.BPE(
        vocab=vocabulary, merges=merges, byte_fallback=True, fuse_unk=True, unk_token=unknown
    )
    tokenizer = Tokenizer(model)
    steps = [normalizers.Prepend("\u2581")] if prefix else []
    tokenizer.normalizer = normalizers.Sequence(steps + [normalizers.Replace(" ", "\u2581")])
    return tokenizer


def score_merges(tokens, types, scores):
    """The merges that a SentencePiece vocabulary implies, best score first."""
    ids = {text: i for i, text in enumerate(tokens) if types[i] == 1}
    found = []
    for text, i in ids.items():
        for at in range(1, len(text)):
            left, right = text[:at], text[at:]
            if left in ids and right in ids:
                found.append((-scores[i], ids[left], ids[right], (left, right)))
    return [merge for *_, merge in sorted(found)]


def read_gguf(path):
    reader = gguf.GGUFReader(path)
    names = {"tokens": "tokens", "types": "token_type", "merges": "merges", "scores": "scores"}
    found = {}
    for ours, theirs in names.items():
        field = reader.fields.get("tokenizer.ggml." + theirs)
        found[ours] = field.contents() if field else []
    return found


def add_specials(tokenizer, tokens, types):
    control = [tokens[i] for i in range(len(tokens)) if types[i] in (2, 3)]
    user = [tokens[i] for i in range(len(tokens)) if types[i] == 4]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in user])


def expected(tokenizer):
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]


def write(folder, name, value):
    # One case a line keeps the files readable in a diff.
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    path = pathlib.Path(folder) / f"{name}.json"
    path.write_text(text.replace("],[", "],\n["), encoding="ascii")


def small_byte_level(folder):
    """A vocabulary of about a thousand tokens, trained on the texts, under all four splitters."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    corpus = TEXTS + [pathlib.Path(__file__).read_text(encoding="utf-8")] * 2
    trained.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=1000,
            min_frequency=2,
            special_tokens=SPECIALS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [tuple(merge) for merge in model["merges"]]
    types = [3 if token in SPECIALS else 1 for token in tokens]
    splitters = {"gpt-2": None, "smollm": "digits", "qwen2": QWEN2, "llama-bpe": LLAMA3}
    cases = {}
    for name, split in splitters.items():
        tokenizer = byte_level(
            model["vocab"], merges, split, name == "qwen2", ignore_merges=name == "llama-bpe"
        )
        add_specials(tokenizer, tokens, types)
        cases[name] = expected(tokenizer)
    vocabulary = {"model": "gpt2", "tokens": tokens, "types": types, "scores": []}
    write(folder, "small_byte_pair", vocabulary | {"merges": merges, "cases": cases})


def small_pieces(folder):
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "\u2581")
    trained.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    corpus = [pathlib.Path(__file__).read_text(encoding="utf-8")] * 2 + TEXTS[:36] * 2
    trained.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=900, min_frequency=3, show_progress=False)
    )
    model = json.loads(trained.to_str())["model"]
    specials = ["<unk>", "<s>", "</s>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    learned = sorted(model["vocab"], key=model["vocab"].get)
    joined = ["".join(merge) for merge in model["merges"]]
    # As SentencePiece writes them: merged pieces by rank, then single characters.
    ordered = joined + [text for text in learned if text not in set(joined)]
    user = ["\n\n", "<table>"]
    tokens = specials + byte_tokens + user + [t for t in ordered if t not in user]
    types = [2, 3, 3] + [6] * 256 + [4] * len(user)
    types += [1] * (len(tokens) - len(types))
    first = 259 + len(user)
    scores = [0.0] * first + [-float(i) for i in range(len(tokens) - first)]
    ids = {text: i for i, text in enumerate(tokens)}
    merges = score_merges(tokens, types, scores)
    cases = {}
    for name, prefix in {"plain": False, "prefix": True}.items():
        tokenizer = pieces(ids, merges, prefix, "<unk>")
        add_specials(tokenizer, tokens, types)
        cases[name] = expected(tokenizer)
    vocabulary = {"model": "llama", "tokens": tokens, "types": types, "scores": scores}
    write(folder, "small_pieces", vocabulary | {"merges": [], "cases": cases})


def smollm2(folder, path):
    found = read_gguf(path)
    ids = {text: i for i, text in enumerate(found["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in found["merges"]]
    tokenizer = byte_level(ids, merges, "digits")
    add_specials(tokenizer, found["tokens"], found["types"])
    write(folder, "smollm2", expected(tokenizer))


def gemma(folder, path):
    found = read_gguf(path)
    ids = {text: i for i, text in enumerate(found["tokens"])}
    merges = score_merges(found["tokens"], found["types"], found["scores"])
    tokenizer = pieces(ids, merges, False, "<unk>")
    add_specials(tokenizer, found["tokens"], found["types"])
    write(folder, "gemma3", expected(tokenizer))


def tiktoken_merges(ranks):
    """For each token of two bytes or more, the two tokens that its bytes merge to last."""
    merges = []
    for token, rank in ranks.items():
        if len(token) == 1:
            continue
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            best = min(
                (ranks.get(parts[i] + parts[i + 1], len(ranks)), i) for i in range(len(parts) - 1)
            )
            assert best[0] < rank
            parts[best[1] : best[1] + 2] = [parts[best[1]] + parts[best[1] + 1]]
        merges.append((rank, parts[0], parts[1]))
    return [(left, right) for _, left, right in sorted(merges)]


def byte_spelling():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) for byte in printable}
    return table | {byte: chr(256 + i) for i, byte in enumerate(rest)}


def qwen2(folder, path, vocabularies):
    spelling = byte_spelling()
    spell = lambda text: "".join(spelling[byte] for byte in text)
    lines = pathlib.Path(path).read_text().split("\n")
    ranks = {base64.b64decode(a): int(b) for a, b in (line.split() for line in lines if line)}
    tokens = [spell(text) for text in sorted(ranks, key=ranks.get)]
    merges = [(spell(left), spell(right)) for left, right in tiktoken_merges(ranks)]
    control = SPECIALS + ["<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"]
    control += ["<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>"]
    control += ["<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"]
    user = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"]
    user += ["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
    types = [1] * len(tokens) + [3] * len(control) + [4] * len(user)
    tokens += control + user
    ids = {text: i for i, text in enumerate(tokens)}
    tokenizer = byte_level(ids, merges, QWEN2, nfc=True)
    add_specials(tokenizer, tokens, types)
    write(folder, "qwen2", expected(tokenizer))
    padding = 151936 - len(tokens)
    tokens += [f"[PAD{len(tokens) + i}]" for i in range(padding)]
    types += [5] * padding
    if vocabularies:
        roles = {"bos": 151643, "eos": 151645}
        write_vocabulary(f"{vocabularies}/qwen2-vocabulary.gguf", "qwen2", tokens, types, merges, roles)


def llama3(folder, path, vocabularies):
    parsed = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_file(path)
    write(folder, "llama3", expected(tokenizer))
    vocabulary = dict(parsed["model"]["vocab"])
    special = {token["id"]: token["content"] for token in parsed["added_tokens"]}
    tokens = [""] * (max(max(vocabulary.values()), max(special)) + 1)
    types = [1] * len(tokens)
    for text, i in vocabulary.items():
        tokens[i] = text
    for i, text in special.items():
        tokens[i], types[i] = text, 3
    merges = [tuple(m if isinstance(m, list) else m.split(" ")) for m in parsed["model"]["merges"]]
    if vocabularies:
        roles = {"bos": 128000, "eos": 128009}
        write_vocabulary(
            f"{vocabularies}/llama3-vocabulary.gguf", "llama-bpe", tokens, types, merges, roles
        )


def write_vocabulary(path, pre, tokens, types, merges, roles):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(roles["bos"])
    writer.add_eos_token_id(roles["eos"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    for name in ["smollm2", "gemma", "qwen2", "llama3", "vocabularies"]:
        parser.add_argument(f"--{name}")
    given = parser.parse_args()
    write(given.folder, "texts", TEXTS)
    small_byte_level(given.folder)
    small_pieces(given.folder)
    if given.smollm2:
        smollm2(given.folder, given.smollm2)
    if given.gemma:
        gemma(given.folder, given.gemma)
    if given.qwen2:
        qwen2(given.folder, given.qwen2, given.vocabularies)
    if given.llama3:
        llama3(given.folder, given.llama3, given.vocabularies)


main()
