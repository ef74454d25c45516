use super::{
    FaultClass::{App, Contained, Info, Link, Reboot, Reset, Retire, Unknown},
    *,
};

const NONFATAL: XidDetail = XidDetail {
    is_fatal: false,
    sub_code: Some(37),
};
const FATAL: XidDetail = XidDetail {
    is_fatal: true,
    sub_code: Some(37),
};

#[test]
fn what_ships_is_whole_and_says_what_it_is_to_say() {
    let catalogue = Catalogue::parse(SHIPPED).unwrap();
    assert_eq!(catalogue, Catalogue::shipped());
    let codes = catalogue.rules.keys().filter_map(|key| key.whole_xid());
    assert_eq!(codes.count(), COUNT);
    for (code, class) in [
        (13, App),
        (31, App),
        (32, App),
        (43, Info),
        (46, Reset),
        (48, Reset),
        (54, Unknown),
        (63, Info),
        (64, Reset),
        (74, Link),
        (79, Reboot),
        (94, Contained),
        (95, Reset),
        (109, Reset),
        (145, Link),
        (151, Reboot),
        (167, Unknown),
        (171, Reset),
        (9_999, Unknown),
        (u32::MAX, Unknown),
    ] {
        assert_eq!(catalogue.meaning(code), Meaning::Class(class), "{code}");
    }
    assert_eq!(catalogue.meaning(45), Meaning::Companion);
    assert_eq!(catalogue.meaning(154), Meaning::Companion);
    for signal in Signal::ALL {
        let is_listed = catalogue.rules.contains_key(&RuleKey::Signal(signal));
        assert!(is_listed, "{signal:?}");
    }
    assert_eq!(catalogue.class_of(Signal::Throttled), Info);
    assert_eq!(catalogue.class_of(Signal::RowRemapFailure), Retire);
    assert_eq!(
        Catalogue::default().class_of(Signal::Throttled),
        Unknown,
        "what nobody listed"
    );
}

/// Codes that the shipped table lists.
const COUNT: usize = 111;

#[test]
fn of_nvlinks_from_blackwell_on_what_is_not_fatal_is_an_anomaly() {
    let catalogue = Catalogue::shipped();
    for code in 144..=150 {
        assert!(catalogue.has_details(code));
        let class = |detail| catalogue.xid(code, detail).meaning;
        assert_eq!(class(Some(NONFATAL)), Meaning::Class(Info));
        assert_eq!(class(Some(FATAL)), Meaning::Class(Link));
        assert_eq!(class(None), Meaning::Class(Link));
    }
    assert!(!catalogue.has_details(74) && !catalogue.has_details(143));
}

#[test]
fn nothing_that_an_application_brings_about_closes_a_gpu_by_being_repeated() {
    let catalogue = Catalogue::shipped();
    for (key, rule) in &catalogue.rules {
        let Some(repeat) = rule.repeat else {
            continue;
        };
        let is_of_hardware =
            matches!(rule.meaning, Meaning::Class(class) if class == Link || class >= Reset);
        assert!(is_of_hardware, "{key:?}");
        let within = |number, (least, most)| (least..=most).contains(&number);
        assert!(within(repeat.count, Repeat::COUNTS));
        assert!(within(repeat.within_seconds, Repeat::WITHIN_SECONDS));
        assert!(within(repeat.burst_seconds, Repeat::BURST_SECONDS));
    }
    assert!(catalogue.repeat(Cause::Xid(48)).is_some());
    let of_link = |detail| catalogue.repeat(Cause::DetailedXid(149, detail)).is_some();
    assert!(of_link(FATAL) && !of_link(NONFATAL));
    assert_eq!(catalogue.repeat(Cause::Xid(31)), None);
    assert_eq!(catalogue.repeat(Cause::RecoveryAction(1)), None);
}

#[test]
fn an_administrator_may_say_otherwise_code_by_code() {
    let shipped = Catalogue::shipped();
    let changed = shipped.clone();
    let changed = changed.with_overrides(r#"{"109": "App", "500": "Retire", "13": "Companion"}"#);
    let changed = changed.unwrap();
    assert_eq!(changed.meaning(109), Meaning::Class(App));
    assert_eq!(changed.meaning(500), Meaning::Class(Retire));
    assert_eq!(changed.meaning(13), Meaning::Companion);
    assert_eq!(changed.meaning(48), shipped.meaning(48));
}

#[test]
fn the_rule_that_says_most_counts_and_one_about_the_whole_code_takes_the_place_of_shipped_details()
{
    let rule = |class| Rule::from(Meaning::Class(class));
    let key = |is_fatal, sub_code| RuleKey::Xid {
        code: 149,
        is_fatal,
        sub_code,
    };
    let catalogue = Catalogue::shipped().with_rules(&[
        (key(None, Some(37)), rule(Reset)),
        (key(Some(false), Some(37)), rule(App)),
        // The first counts.
        (key(None, Some(37)), rule(Info)),
    ]);
    let meaning = |catalogue: &Catalogue, detail| catalogue.xid(149, detail).meaning;
    let other = XidDetail {
        is_fatal: false,
        sub_code: Some(1),
    };
    for (detail, class) in [
        (Some(NONFATAL), App),
        (Some(FATAL), Reset),
        (Some(other), Info),
        (None, Link),
    ] {
        let meaning = meaning(&catalogue, detail);
        assert_eq!(meaning, Meaning::Class(class), "{detail:?}");
    }
    let whole = Catalogue::shipped().with_rules(&[(RuleKey::xid(149), rule(Retire))]);
    for detail in [Some(NONFATAL), Some(FATAL), None] {
        assert_eq!(meaning(&whole, detail), Meaning::Class(Retire));
    }
    assert_eq!(whole.xid(148, Some(NONFATAL)).meaning, Meaning::Class(Info));
    let throttled = [(RuleKey::Signal(Signal::Throttled), rule(Unknown))];
    let strict = Catalogue::shipped().with_rules(&throttled);
    assert_eq!(strict.class_of(Signal::Throttled), Unknown);
}

#[test]
fn a_table_that_is_wrong_is_refused_with_what_is_wrong() {
    let shipped = Catalogue::shipped();
    let refused = |text: &str| {
        shipped
            .clone()
            .with_overrides(text)
            .unwrap_err()
            .to_string()
    };
    assert!(refused(r#"{"109": "Harmless"}"#).contains("XID 109"));
    assert!(refused(r#"{"one": "App"}"#).contains("cannot be read"));
    assert!(refused("").contains("cannot be read"));
    for (text, cause) in [
        (
            r#"{"sources": [], "xids": {"App": [1], "Info": [1]}}"#,
            "XID 1 is listed twice",
        ),
        (
            r#"{"sources": [], "xids": {}, "signals": {"Info": ["Heat"]}}"#,
            "\"Heat\"",
        ),
        (
            r#"{"sources": [], "xids": {}, "details": [{"xids": [1], "severity": "Bad", "class": "Info"}]}"#,
            "\"Bad\"",
        ),
    ] {
        let error = Catalogue::parse(text).unwrap_err().to_string();
        assert!(error.contains(cause), "{error}");
    }
}
