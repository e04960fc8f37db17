use std::io::Write as _;
use std::process::{Command, Stdio};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::json;

use super::*;

#[test]
fn canonical_form_of_texts() {
    for (text, expected) in [
        ("0", "0"),
        ("-0", "0"),
        ("-0.0", "-0.0"),
        ("-0e0", "-0.0"),
        ("1e2", "100.0"),
        ("1E+2", "100.0"),
        ("1.10", "1.1"),
        ("1e15", "1000000000000000.0"),
        ("9999999999999998.0", "9999999999999998.0"),
        ("1e16", "1e+16"),
        ("123456789012345678.0", "1.2345678901234568e+17"),
        ("0.0001", "0.0001"),
        ("0.00009999999999999999", "9.999999999999999e-05"),
        ("1e-5", "1e-05"),
        ("1e-7", "1e-07"),
        ("1e100", "1e+100"),
        ("-1.5e-300", "-1.5e-300"),
        ("2.4703282292062328e-324", "5e-324"),
        ("2.4703282292062327e-324", "0.0"),
        ("-1e-400", "-0.0"),
        // Two texts of 17 digits are equally near; the even one is taken.
        ("2.98023223876953125e-8", "2.9802322387695312e-08"),
        ("1125899906842624.25", "1125899906842624.2"),
        ("1125899906842624.75", "1125899906842624.8"),
        ("123.456", "123.456"),
        ("12345678901234567.0", "1.2345678901234568e+16"),
        ("-0.00012", "-0.00012"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
        ("9007199254740993", "9007199254740993"),
        ("9007199254740993.0", "9007199254740992.0"),
        ("18446744073709551615", "18446744073709551615"),
        ("-9223372036854775808", "-9223372036854775808"),
        (" [ 1 , 2 ]\r\n\t", "[1,2]"),
        (r#"{"b":{"d":1,"c":2},"a":[]}"#, r#"{"a":[],"b":{"c":2,"d":1}}"#),
        (r#"{"a":1,"b":2,"a":3}"#, r#"{"a":3,"b":2}"#),
        (r#"{"a":1,"\u0061":2}"#, r#"{"a":2}"#),
        (r#"{"𐀀":1,"￿":2}"#, r#"{"\uffff":2,"\ud800\udc00":1}"#),
        (r#""\/\"\\\b\f\n\r\t""#, r#""/\"\\\b\f\n\r\t""#),
        (r#""\ud83d\uDE00é\u0000""#, r#""\ud83d\ude00\u00e9\u0000""#),
        ("\"\u{7f}\u{2028}\"", r#""\u007f\u2028""#),
    ] {
        assert_eq!(canonical_text("args", text).unwrap(), expected, "{text}");
    }
}

#[test]
fn canonical_form_is_refused_with_a_reason() {
    let refused = "is not JSON";
    for (text, reason) in [
        ("", "args: is empty"),
        (" \n", "is empty"),
        ("18446744073709551616", "integer beyond 64 bits"),
        ("-9223372036854775809", "integer beyond 64 bits"),
        ("[1e309]", "too large for a double at byte 1"),
        ("-1e999999999999", "too large for a double"),
        ("NaN", refused),
        ("-Infinity", refused),
        ("nul", refused),
        ("nulls", refused),
        ("{} {}", "text after the end of the value at byte 3"),
        ("\u{feff}{}", refused),
        ("\u{a0}1", refused),
        ("01", refused),
        ("-", refused),
        ("+1", refused),
        ("1.", refused),
        (".5", refused),
        ("1e", refused),
        ("1e+", refused),
        ("[1,]", refused),
        ("[,1]", refused),
        ("[1", refused),
        ("[1}", refused),
        ("{,}", refused),
        (r#"{"a"}"#, "a colon is missing"),
        (r#"{"a":1,}"#, refused),
        (r#"{"a":1"#, "an object is not closed"),
        ("{a:1}", refused),
        ("'a'", refused),
        (r#""a"#, "cut off"),
        ("\"a\n\"", "control character"),
        (r#""\x41""#, "an escape is unknown"),
        (r#""\u12""#, refused),
        (r#""\u+123""#, refused),
        (r#""\u12é4""#, refused),
        (r#""\ud800""#, "lone surrogate"),
        (r#""\udc00""#, "lone surrogate"),
        (r#""\ud800\ud800""#, "lone surrogate"),
        (r#""\ud800\n""#, "lone surrogate"),
        (r#""\ud800\u0061""#, "lone surrogate"),
        (r#"{"\ud800":1}"#, "lone surrogate"),
    ] {
        let error = canonical_text("args", text).expect_err(text).to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn nesting_has_the_limit_of_serde_json() {
    let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    canonical_text("args", &nested(127)).unwrap();
    assert!(canonical_text("args", &nested(128)).unwrap_err().to_string().contains("127 levels"));
    assert!(canonical_text("args", &"[".repeat(1_000_000)).is_err());
    assert!(serde_json::from_str::<serde_json::Value>(&nested(128)).is_err());
}

#[test]
fn canonical_form_of_a_value_built_in_code_is_the_same() {
    let value = json!({"z": [1.0, 1e16, -0.0, u64::MAX, i64::MIN], "a": {"é": null}});
    let expected =
        r#"{"a":{"\u00e9":null},"z":[1.0,1e+16,-0.0,18446744073709551615,-9223372036854775808]}"#;
    assert_eq!(canonical_text("args", &value.to_string()).unwrap(), expected);
}

/// Prints the canonical form of each text between NULs, or nothing where the text is refused.
const PYTHON: &str = r#"
import json, math, sys
def refuse(text): raise ValueError(text)
def integer(text):
    number = int(text)
    return number if -2**63 <= number < 2**64 else refuse(text)
def double(text):
    number = float(text)
    return number if math.isfinite(number) else refuse(text)
def members(pairs):
    json.dumps(pairs, ensure_ascii=False).encode()
    return dict(pairs)
def canonical(text):
    try:
        value = json.loads(text.decode(), parse_int=integer, parse_float=double,
                           parse_constant=refuse, object_pairs_hook=members)
        json.dumps(value, ensure_ascii=False).encode()
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except ValueError:
        return ""
texts = sys.stdin.buffer.read().split(b"\0")
sys.stdout.write("\0".join(map(canonical, texts)))
"#;

#[test]
fn canonical_form_is_what_python_prints() {
    let mut runner = TestRunner::deterministic();
    let mut draw = |texts: BoxedStrategy<String>, n: usize| -> Vec<String> {
        (0..n).map(|_| texts.new_tree(&mut runner).unwrap().current()).collect()
    };
    let mut texts = draw(any_text(), 3000);
    texts.extend(draw(any_double(), 6000));
    texts.extend(draw(mutated(any_text()), 3000));
    texts.extend(powers_of_two());
    let Some(expected) = python(&texts) else { return };
    assert_eq!(expected.len(), texts.len());
    assert!(expected.iter().filter(|text| text.is_empty()).count() < texts.len() / 2);
    for (text, expected) in texts.iter().zip(expected) {
        let ours = canonical_text("args", text).unwrap_or_default();
        assert_eq!(ours, expected, "{text:?}");
    }
}

fn python(texts: &[String]) -> Option<Vec<String>> {
    let mut command = Command::new("python3");
    command.args(["-X", "utf8", "-c", PYTHON]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        // Past the harness, which hides what a test that passes prints.
        let test = module_path!();
        writeln!(std::io::stderr(), "skipped: {test}: there is no python3").unwrap();
        return None;
    };
    child.stdin.take().unwrap().write_all(texts.join("\0").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    Some(String::from_utf8(output.stdout).unwrap().split('\0').map(str::to_owned).collect())
}

/// The neighbours of a power of two are unevenly far away, and texts of small powers and of
/// quarters below 2^53 can be equally near.
fn powers_of_two() -> impl Iterator<Item = String> {
    let powers = (0..0x7ff_u64).flat_map(|exponent| {
        (-2..=2).map(move |step| f64::from_bits((exponent << 52).saturating_add_signed(step)))
    });
    let quarters = (0..1000_u32).map(|n| 1_125_899_906_842_624.0 + f64::from(n) * 0.25);
    let fractions = (1..2000_u32).map(|n| f64::from(n) / f64::from(1_u32 << (n % 32)) / 1e3);
    powers.chain(quarters).chain(fractions).map(|double| format!("{double:?}"))
}

fn any_text() -> BoxedStrategy<String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        Just("false".to_owned()),
        any_number(),
        any_string(),
    ];
    let tree = leaf.prop_recursive(5, 40, 6, |inner| {
        let inner = (any_space(), inner, any_space()).prop_map(|(a, v, b)| a + &v + &b);
        let member = (any_space(), any_name(), any_space(), inner.clone());
        prop_oneof![
            vec(inner, 0..5).prop_map(|items| format!("[{}]", items.join(","))),
            vec(member.prop_map(|(a, k, b, v)| format!("{a}{k}{b}:{v}")), 0..6)
                .prop_map(|members| format!("{{{}}}", members.join(","))),
        ]
    });
    tree.boxed()
}

fn any_space() -> impl Strategy<Value = String> + Clone {
    prop_oneof![8 => Just(String::new()), 1 => "[ \t\r\n]{1,3}".prop_map(String::from)]
}

/// Short names repeat and collide; others sort differently by UTF-16 unit than by code point.
fn any_name() -> impl Strategy<Value = String> + Clone {
    prop_oneof![
        "\"[a-c]?\"",
        Just("\"\\u0061\"".to_owned()),
        Just("\"\u{ffff}\"".to_owned()),
        Just("\"\u{10000}\"".to_owned()),
        any_string(),
    ]
}

fn any_string() -> BoxedStrategy<String> {
    let piece = prop_oneof![
        4 => any::<char>().prop_map(|c| match c {
            '"' | '\\' | '\0'..='\u{1f}' => format!("\\u{:04X}", u32::from(c)),
            _ => c.to_string(),
        }),
        2 => "[ -!#-\\[\\]-~]{1,8}",
        1 => "\\\\[\"\\\\/bfnrt]",
        1 => "[\u{7f}-\u{a0}\u{2028}\u{2029}\u{fe00}-\u{ffff}\u{10ffff}]",
        1 => any::<char>().prop_map(|c| {
            let mut units = [0; 2];
            let units: Vec<String> =
                c.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect();
            units.concat()
        }),
    ];
    vec(piece, 0..8).prop_map(|pieces| format!("\"{}\"", pieces.concat())).boxed()
}

fn any_number() -> BoxedStrategy<String> {
    prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        any::<u64>().prop_map(|n| n.to_string()),
        (-20_i8..20).prop_map(|n| n.to_string()),
        "-?(0|[1-9][0-9]{0,24})(\\.[0-9]{1,25})?([eE][-+]?[0-9]{1,2})?",
        "-?(0|[1-9][0-9]{0,5})[eE][-+]?[0-9]{1,3}",
        "-?[0-9]{18,20}",
        any_double(),
    ]
    .boxed()
}

fn any_double() -> BoxedStrategy<String> {
    let near_power = (-330_i32..310, -3_i64..4).prop_map(|(exponent, steps)| {
        let power: f64 = format!("1e{exponent}").parse().unwrap();
        f64::from_bits(power.to_bits().saturating_add_signed(steps))
    });
    let doubles = prop_oneof![
        any::<u64>().prop_map(f64::from_bits),
        near_power,
        (0_u64..1 << 53).prop_map(f64::from_bits),
        (1_u64..0x7ff).prop_map(|exponent| f64::from_bits(exponent << 52)),
    ];
    (doubles, 0..3)
        .prop_map(|(double, spelling)| match spelling {
            _ if !double.is_finite() => "1e400".to_owned(),
            0 => format!("{double:e}"),
            1 => format!("{double:.17E}"),
            _ => format!("{double:?}"),
        })
        .boxed()
}

/// Texts with one character removed, doubled or replaced; most are not JSON any more.
fn mutated(texts: BoxedStrategy<String>) -> BoxedStrategy<String> {
    let odd = proptest::sample::select(
        "0-+.eE,:[]{}\"\\u/dn \t\n\u{1}\u{a0}\u{feff}".chars().collect::<Vec<_>>(),
    );
    (texts, any::<proptest::sample::Index>(), odd, 0..3)
        .prop_map(|(text, at, odd, how)| {
            let mut chars: Vec<char> = text.chars().collect();
            let at = at.index(chars.len());
            match how {
                0 => drop(chars.remove(at)),
                1 => chars.insert(at, odd),
                _ => chars[at] = odd,
            }
            chars.into_iter().collect()
        })
        .boxed()
}
