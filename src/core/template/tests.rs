use super::*;

fn filled(template: &str, form: Form, value: &str) -> Result<String, String> {
    fill(template, form, |name| if name == "{entity_id}" { value.to_owned() } else { "k".into() })
}

#[test]
fn placeholders_are_escaped_for_where_they_stand() {
    let value = "ord\u{e9}r \"?#&1\\";
    for (form, expected) in [
        (Form::Url, "ord%C3%A9r%20%22%3F%23%261%5C"),
        (Form::Json, r#"ord\u00e9r \"?#&1\\"#),
        (Form::Plain, value),
    ] {
        let expected = format!("k/{expected}/k {{id}} {{");
        let template = "{idempotency_key}/{entity_id}/{key_hash} {id} {";
        assert_eq!(filled(template, form, value).unwrap(), expected);
    }
}

#[test]
fn placeholder_value_is_not_filled_in_again() {
    for form in [Form::Json, Form::Plain] {
        let value = "{idempotency_key}{entity_id}";
        assert_eq!(filled("<{entity_id}>", form, value).unwrap(), format!("<{value}>"));
    }
    let in_url = filled("{entity_id}", Form::Url, "{key_hash}").unwrap();
    assert_eq!(in_url, "%7Bkey_hash%7D");
}

#[test]
fn placeholder_value_is_never_empty_and_stays_in_its_segment() {
    for form in [Form::Url, Form::Json, Form::Plain] {
        assert!(filled("{entity_id}", form, "").unwrap_err().contains("{entity_id} is empty"));
    }
    for value in [".", ".."] {
        assert!(filled("a/{entity_id}", Form::Url, value).is_err());
        assert!(filled("{entity_id}", Form::Json, value).is_ok());
    }
    assert_eq!(filled("/{entity_id}", Form::Url, "../b").unwrap(), "/..%2Fb");
}

#[test]
fn json_template_has_its_placeholders_in_strings() {
    for text in [
        r#"{"a":{"key":"{idempotency_key}"},"since":{created_at},"list":["{tenant_id}{}"]}"#,
        r#"{"query":"query($k: ID) { charge(key: $k) { id } }","k":"{key_hash}"}"#,
    ] {
        assert_eq!(check_json(text), Ok(()), "{text}");
    }
    for text in [
        "",
        "key={idempotency_key}",
        r#"{"key":{idempotency_key}}"#,
        r#"{"key":1{entity_id}}"#,
        r#"{"key":"\{entity_id}"}"#,
        r#"{"key":"{secret}"}"#,
        r#"{"key":"{{entity_id}}"}"#,
    ] {
        let error = check_json(text).unwrap_err();
        assert!(!error.contains("secret"), "{text}: {error}");
    }
}

#[test]
fn texts_with_other_braces_are_refused() {
    assert_eq!(check_braces("a={entity_id}", OWN), Ok(()));
    for text in ["a={tenant_id}", "a={secret}", "a={", "}"] {
        let error = check_braces(text, OWN).unwrap_err();
        assert!(error.starts_with("only {idempotency_key} and {entity_id} may"), "{error}");
    }
    assert_eq!(check_braces("{tenant_id}{ordering_key}{created_at}", CONFIGURED), Ok(()));
    assert!(check_braces("{downstream_id}", CONFIGURED).is_err());
}
