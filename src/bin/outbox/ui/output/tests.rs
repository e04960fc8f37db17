use super::*;

/// Characters that Unicode draws as nothing, or takes as an order to the writing itself; by the
/// categories and the property that say so.
const HARMFUL: [(&str, u32, u32); 40] = [
    ("Cc: controls of C0", 0x0, 0x1f),
    ("Cc: DEL and controls of C1", 0x7f, 0x9f),
    ("Cf: soft hyphen", 0xad, 0xad),
    ("default-ignorable: combining grapheme joiner", 0x34f, 0x34f),
    ("Cf: Arabic number signs", 0x600, 0x605),
    ("Cf: Arabic letter mark", 0x61c, 0x61c),
    ("Cf: Arabic end of ayah", 0x6dd, 0x6dd),
    ("Cf: Syriac abbreviation mark", 0x70f, 0x70f),
    ("Cf: Arabic pound and piastre marks above", 0x890, 0x891),
    ("Cf: Arabic disputed end of ayah", 0x8e2, 0x8e2),
    ("default-ignorable: Hangul fillers", 0x115f, 0x1160),
    ("default-ignorable: Khmer inherent vowels", 0x17b4, 0x17b5),
    ("default-ignorable: Mongolian selectors one to three", 0x180b, 0x180d),
    ("Cf: Mongolian vowel separator", 0x180e, 0x180e),
    ("default-ignorable: Mongolian selector four", 0x180f, 0x180f),
    ("Cf: zero widths and marks of direction", 0x200b, 0x200f),
    ("Zl: line separator", 0x2028, 0x2028),
    ("Zp: paragraph separator", 0x2029, 0x2029),
    ("Cf: embeddings and overrides", 0x202a, 0x202e),
    ("Cf: word joiner and invisible operators", 0x2060, 0x2064),
    ("default-ignorable: reserved", 0x2065, 0x2065),
    ("Cf: isolates", 0x2066, 0x2069),
    ("Cf: deprecated formats", 0x206a, 0x206f),
    ("drawn as nothing: Braille blank", 0x2800, 0x2800),
    ("default-ignorable: Hangul filler", 0x3164, 0x3164),
    ("default-ignorable: variation selectors", 0xfe00, 0xfe0f),
    ("Cf: byte order mark", 0xfeff, 0xfeff),
    ("default-ignorable: halfwidth Hangul filler", 0xffa0, 0xffa0),
    ("default-ignorable: reserved specials", 0xfff0, 0xfff8),
    ("Cf: interlinear annotations", 0xfff9, 0xfffb),
    ("Cf: Kaithi number sign", 0x110bd, 0x110bd),
    ("Cf: Kaithi number sign above", 0x110cd, 0x110cd),
    ("Cf: Egyptian joiners and brackets", 0x13430, 0x1343f),
    ("Cf: shorthand formats", 0x1bca0, 0x1bca3),
    ("Cf: musical formats", 0x1d173, 0x1d17a),
    ("Cf: language tag", 0xe0001, 0xe0001),
    ("Cf: tags", 0xe0020, 0xe007f),
    ("default-ignorable: further variation selectors", 0xe0100, 0xe01ef),
    ("default-ignorable: reserved before them", 0xe0080, 0xe00ff),
    ("default-ignorable: reserved after them", 0xe01f0, 0xe0fff),
];

/// Reserved beside the tags, and default-ignorable too.
const RESERVED: [(u32, u32); 2] = [(0xe0000, 0xe0000), (0xe0002, 0xe001f)];

#[test]
fn every_character_of_the_harmful_classes_is_escaped_and_no_other() {
    let ranges = HARMFUL.iter().map(|(_, first, last)| (*first, *last)).chain(RESERVED);
    let ranges: Vec<(u32, u32)> = ranges.collect();
    for c in '\0'..=char::MAX {
        let code = u32::from(c);
        let harmful = ranges.iter().any(|(first, last)| (*first..=*last).contains(&code));
        let text = format!("a{c}b");
        let escaped = escape(&text);
        assert_eq!(escaped != text, harmful, "U+{code:04X}");
        let json = serde_json::to_string(&text).unwrap();
        let safe = escape_json(&json);
        assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), text, "U+{code:04X}");
        if harmful {
            assert!(escaped.is_ascii() && safe.is_ascii(), "U+{code:04X}: {escaped} {safe}");
        } else {
            assert_eq!(safe, json, "U+{code:04X}");
        }
    }
}

#[test]
fn harmful_characters_are_escaped_by_name() {
    for (name, first, last) in HARMFUL {
        for code in [first, last] {
            let text = char::from_u32(code).unwrap().to_string();
            assert!(escape(&text).starts_with('\\'), "{name}: U+{code:04X}");
        }
    }
    assert_eq!(escape("a\u{202e}b\n\u{e0041}"), r"a\u{202e}b\n\u{e0041}");
    assert_eq!(escape_json("\"\u{202e}\u{e0041}\""), r#""\u202e\udb40\udc41""#);
    assert_eq!(escape("Zoë 東京 👍 é"), "Zoë 東京 👍 é");
}

#[test]
fn text_is_cut_after_it_was_escaped_so_that_no_more_is_printed() {
    assert_eq!(brief(&"x".repeat(160)), "x".repeat(160));
    assert_eq!(brief(&"x".repeat(161)), "x".repeat(160) + "…");
    assert_eq!(brief(&"\u{200b}".repeat(1000)).chars().count(), 161);
    assert_eq!(shorten("äöü", 2), "äö…");
}
