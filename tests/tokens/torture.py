"""Texts that tokenizers stumble over, and a small corpus to learn vocabularies from."""

from __future__ import annotations

TORTURE = {
    "empty": "",
    "English": "The quick brown fox didn't jump over 1,234.50 lazy dogs; they'd've barked!",
    "German": "Ärger über Größe: Straßenbahnhaltestelle „Übergänge“ – naïve café façade.",
    "Turkish": "İstanbul'da ılık IĞDIR iĞneli",
    "Greek": "Ὀδυσσεύς ΣΑΣ σας Ελλάδα",
    "Russian": "Съешь ещё этих мягких французских булок, да выпей чаю",
    "Vietnamese": "Tiếng Việt có dấu: ữ ợ ậ ể",
    "Polish": "Zażółć gęślą jaźń",
    "Hebrew": "שלום עולם! שָׁלוֹם (niqqud)",
    "Arabic": "مرحبا بالعالم ١٢٣ لَا إِلٰهَ ـــ ﷺ",
    "Persian with joiners": "می\u200cخواهم نمی\u200cدانم",
    "Hindi": "नमस्ते दुनिया क्षत्रिय ५६७",
    "Tamil": "வணக்கம் உலகம்",
    "Bengali": "বাংলা ভাষা ক্ষ",
    "Thai": "ภาษาไทยไม่มีช่องว่างระหว่างคำ",
    "Khmer": "ភាសាខ្មែរគ្មានដកឃ្លា",
    "Burmese": "မြန်မာဘာသာ",
    "Tibetan": "བོད་སྐད་",
    "Amharic": "አማርኛ ቋንቋ።",
    "Georgian": "ქართული ენა",
    "Armenian": "Հայերեն լեզու",
    "Chinese": "我喜欢吃苹果，你呢？３个",
    "Japanese": "私はﾃｽﾄをする。カタカナとひらがな",
    "Korean": "안녕하세요 세계",
    "Korean in letters": "\u1112\u1161\u11ab\u1100\u116e\u11a8",
    "CJK and Latin": "使用Python3编程ABC東京tower2024年",
    "composed": "\u00e9\u00f1\u00fc\u00c5\u1ec7",
    "decomposed": "e\u0301n\u0303u\u0308A\u030ae\u0323\u0302",
    "many marks": "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033da\u034f\u0334\u0319l\u0363",
    "marks alone": "\u0301\u0301 \u0308",
    "ligatures": "ﬁne oﬃce Ǆ ﬀ ŉ ½ ² ① ㎏ ™",
    "full width": "ＡＢＣ１２３　！？",
    "emoji": "😀😃 👍 ❤️ ☺",
    "emoji with joiners": "👩\u200d🚀 👨\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈",
    "skin tones": "👍🏽👋🏿🤝🏻",
    "flags": "🇩🇪🇯🇵🇺🇳",
    "digits": "0123456789 ٠١٢٣ ०१२३ ๐๑๒๓ 𝟘𝟙𝟚 ⅷ",
    "mathematics": "∀x∈ℝ: ⌈x⌉ ≠ √2·π 𝔘𝔫𝔦",
    "control characters": "a\x01b\x07c\x08d\x1be\x7ff\x85g",
    "zero": "a\x00b",
    "no-break blanks": "a\u00a0b\u202fc\u2007d\u3000e\u2003f\u1680g\u205fh",
    "zero width": "a\u200bb\u200cc\u200dd\u2060e\ufefff\u00adg",
    "directions": "\u202ea\u202cb\u2066c\u2069d\u200e\u200f",
    "line ends": "a\nb\r\nc\rd\u2028e\u2029f\n\n\n\ng",
    "tabs": "a\tb\t\tc\t \td",
    "run of blanks": "a" + " " * 17 + "b   c  d",
    "blanks around": "   a b   ",
    "blanks alone": "     ",
    "one blank": " ",
    "line end alone": "\n",
    "long word": "Donaudampfschifffahrtsgesellschaft" * 147,
    "run of a letter": "a" * 37 + " " + "ha" * 23 + " " + "!" * 11 + " " + "-" * 80,
    "long word of another script": "漢字" * 2_500,
    "marks of blanks": "▁a▁▁b ▁",
    "replacement": "\ufffd\ufffe\U0010ffff\ue000",
    "apostrophes": "'s 'S 're 'RE 'll ’s don’t I'M",
    "code": 'if (x[i] != 0 && y <= 3) { return "a\\n"; } // Ünïcode\n\tend',
    "web": "https://example.org/a?b=c&d=%20e#f user@example.com @name #tag",
    "quotes": "``quoted'' ''double'' `one' \"two\"",
    "spelled bytes": "<0x0A> <0xE4><0xBD> 0x0A>",
    "lone signs": "<|>[]{}()<><<>>||",
}
"""Each under what it is there for. Nothing here spells a special token."""

SPELLED = {
    "sentencepiece": "a <s> b </s> c <unk> d <pad>",
    "bert": "[CLS] a [MASK] b [SEP] [UNK] [PAD]",
    "gpt2": "a <|endoftext|> b <mask>",
    "first and last": "</s>a<s>",
}
"""Texts that spell special tokens. Other programs make those of them; here they stay text."""

TIED = {"run of a letter", "long word of another script"}
"""Texts with several equally likely segmentations: the rounding of sums decides."""

CORPUS = [*TORTURE.values(), *SPELLED.values()] + [
    "The cat sat on the mat, and the dog that the cat had seen ran away.",
    "Der Hund lief über die Straße, und die Katze saß auf der Matte.",
    "aaaa aaa aaaaaaa hahaha ha haha !!! !!!! ---- -- lll ll",
    "Le chat était assis sur le tapis; été, forêt, garçon, naïf.",
] * 6
