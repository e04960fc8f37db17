use crate::core::backoff::Jitter;
use crate::core::contract::OnDead;
use crate::core::judge::Meaning;
use crate::core::pause::PauseKind;
use crate::core::status::Status;
use crate::event::EventKind;

#[test]
fn words_are_read_as_they_are_printed() {
    macro_rules! check {
        ($($Name:ident),+) => {$(
            for value in $Name::ALL {
                assert_eq!(value.to_string(), value.as_str());
                assert_eq!(value.as_str().parse::<$Name>().unwrap(), *value);
            }
            for text in ["", " ", "no_such_word", &$Name::ALL[0].as_str().to_uppercase()] {
                let error = text.parse::<$Name>().unwrap_err().to_string();
                assert!(error.contains($Name::ALL[0].as_str()), "{error}");
            }
        )+};
    }
    check!(Status, EventKind, OnDead, Meaning, Jitter, PauseKind);
    let error = "Done".parse::<Status>().unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Invalid);
    assert_eq!(
        error.to_string(),
        "status: \"Done\" must be one of pending, in_flight, unknown, needs_review, dead, \
         succeeded, cancelled"
    );
    assert_eq!(format!("{:>9}", Status::Dead), "     dead");
}

#[cfg(feature = "serde")]
#[test]
fn words_are_json_strings() {
    assert_eq!(serde_json::to_string(&Status::InFlight).unwrap(), "\"in_flight\"");
    assert_eq!(serde_json::from_str::<OnDead>("\"continue\"").unwrap(), OnDead::Continue);
    let error = serde_json::from_str::<Jitter>("\"ful\"").unwrap_err().to_string();
    assert!(error.starts_with("unknown variant `ful`, expected one of `full`"), "{error}");
}
