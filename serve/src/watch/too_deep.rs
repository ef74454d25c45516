//! JSON that is nested deeper than can be read.
//!
//! The API server stores what claims say to drivers (`opaque.parameters`) as it came, nested up to ten thousand levels deep; serde_json
//! follows 127. Anybody may create such a claim, and it must cost neither the list that contains it nor the watch.

use crate::server::json_bounds::MOST_DEPTH;

/// The text of an object with `null` in place of all that is nested deeper than serde_json follows; `None`: there is nothing such. The
/// text is known to be JSON.
pub(super) fn cut_off(text: &str) -> Option<String> {
    let mut kept = String::new();
    let (mut depth, mut kept_to, mut cut_at) = (0_u32, 0, 0);
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => {
                while let Some((_, byte)) = bytes.next() {
                    match byte {
                        b'\\' => {
                            bytes.next();
                        }
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            b'[' | b'{' => {
                depth = depth.saturating_add(1);
                if depth == MOST_DEPTH + 1 {
                    cut_at = at;
                }
            }
            b']' | b'}' => {
                if depth == MOST_DEPTH + 1 {
                    kept.push_str(&text[kept_to..cut_at]);
                    kept.push_str("null");
                    kept_to = at + 1;
                }
                depth = depth.saturating_sub(1);
            }
            _ => {}
        }
    }
    if kept_to == 0 {
        return None;
    }
    kept.push_str(&text[kept_to..]);
    Some(kept)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::resource::v1::ResourceClaim;
    use kube::{
        Resource,
        core::{ObjectList, WatchEvent},
    };
    use serde_json::Value;

    use super::*;
    use crate::watch::Decoded;

    /// A claim that is nested so deep.
    fn claim(name: &str, depth: usize) -> String {
        // The object, its spec, devices, config, entry, opaque and parameters.
        let inner = depth - 7;
        let parameters = format!(
            r#"{{"text": "]]}}}}\"[[", "deep": {}{}}}"#,
            "[".repeat(inner),
            "]".repeat(inner)
        );
        format!(
            r#"{{"metadata": {{"name": "{name}", "namespace": "ml", "uid": "u"}},
                "spec": {{"devices": {{"config": [{{"opaque": {{"driver": "d", "parameters": {parameters}}}}}], "requests": []}}}}}}"#
        )
    }

    #[test]
    fn a_claim_that_is_nested_too_deep_costs_itself_alone() {
        let list = format!(
            r#"{{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimList", "metadata": {{}}, "items": [{}, {}, {}]}}"#,
            claim("deepest", 127),
            claim("deeper", 128),
            claim("hostile", 9_000),
        );
        let list: ObjectList<Decoded<ResourceClaim>> = serde_json::from_str(&list).unwrap();
        let names: Vec<_> = list.items.iter().map(|it| it.meta().name.clone()).collect();
        assert_eq!(
            names,
            ["deepest", "deeper", "hostile"].map(|name| Some(name.to_owned()))
        );
        let [deepest, others @ ..] = list.items.as_slice() else {
            panic!("three claims")
        };
        assert!(matches!(deepest, Decoded::Whole(_)), "{deepest:?}");
        for other in others {
            let Decoded::Partial(partial) = other else {
                panic!("what was cut off is missing")
            };
            assert_eq!(partial.metadata.uid.as_deref(), Some("u"));
            let [missing] = partial.missing.as_slice() else {
                panic!("{:?}", partial.missing)
            };
            assert!(missing.error.contains("127 levels"), "{missing:?}");
            assert!(partial.object.is_some(), "all else is known");
        }
        let event = format!(
            r#"{{"type": "ADDED", "object": {}}}"#,
            claim("hostile", 9_000)
        );
        let event: WatchEvent<Decoded<ResourceClaim>> = serde_json::from_str(&event).unwrap();
        assert!(matches!(event, WatchEvent::Added(Decoded::Partial(_))));
    }

    #[test]
    fn what_is_cut_off_is_all_that_is_too_deep_and_nothing_else() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(cut_off(&nested(127)), None);
        let (open, close) = ("[".repeat(127), "]".repeat(127));
        for (inner, expected) in [
            (r#"[1], "]", {"a": ["é"]}, 2"#, r#"null, "]", null, 2"#),
            (r#""\"[[", "\\", [[[]]]"#, r#""\"[[", "\\", null"#),
        ] {
            let cut = cut_off(&format!("{open}{inner}{close}")).unwrap();
            assert_eq!(cut, format!("{open}{expected}{close}"));
            serde_json::from_str::<Value>(&cut).unwrap();
        }
    }
}
