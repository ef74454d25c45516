//! Lists that may be long: read page by page, so that no large cluster is in memory as a whole, and told by their first names.

use std::fmt;

use kube::{Api, Resource, ResourceExt, api::ListParams};
use muster_serve::client::{CALL_LIMIT, CallError, within};
use serde::de::DeserializeOwned;

/// Objects of one answer.
const PAGE: u32 = 500;
/// As many are named.
const NAMED: usize = 5;

/// Shows every object of a list, a page at a time; `params` may say how many objects that is.
pub(crate) async fn each<K>(
    api: &Api<K>,
    params: ListParams,
    mut look_at: impl FnMut(&K),
) -> Result<(), CallError>
where
    K: Clone + fmt::Debug + DeserializeOwned + Resource,
{
    let mut params = params;
    params.limit.get_or_insert(PAGE);
    loop {
        let page = within(CALL_LIMIT, api.list(&params)).await?;
        page.items.iter().for_each(&mut look_at);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(()),
        }
    }
}

/// How many there are, and the first of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    count: usize,
    first: Vec<String>,
}

impl Names {
    /// One more.
    pub(crate) fn add(&mut self, name: impl FnOnce() -> String) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push(name());
        }
    }

    /// One more, by its namespace and name.
    pub(crate) fn add_object<K: Resource>(&mut self, object: &K) {
        self.add(|| match object.namespace() {
            Some(namespace) => format!("{namespace}/{}", object.name_any()),
            None => object.name_any(),
        });
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The first of them.
    #[cfg(test)]
    pub(crate) fn first(&self) -> &[String] {
        &self.first
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The first of them, without how many there are.
    pub(crate) fn list(&self) -> String {
        let others = if self.count > self.first.len() {
            " and others"
        } else {
            ""
        };
        format!("{}{others}", self.first.join(", "))
    }
}

impl fmt::Display for Names {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.count, self.list())
    }
}

/// An error with all its causes: one that only says that a request failed helps nobody.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        // Many say their cause themselves.
        if !text.contains(&more) {
            text += ": ";
            text += &more;
        }
        cause = error.source();
    }
    text
}
