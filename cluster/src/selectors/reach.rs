//! What of a device an expression looks at.
//!
//! Two uses. Devices that are alike in all that a selector looks at need not be evaluated twice: of
//! 80,000 GPUs, each with its own UUID, a handful are different to `productName == 'H100'`. And
//! Kubernetes gives an empty map for a domain that a device lacks, which kube-cel must be handed.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::{Device, DeviceAttribute};
use kube_cel::cel::{
    IdedExpr,
    common::ast::{EntryExpr, Expr, LiteralValue, operators},
};

use crate::devices::is_own;

/// `attributes` or `capacity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Section {
    Attributes,
    Capacity,
}

/// What of a device an expression looks at.
#[derive(Debug, Default)]
pub(super) struct Reach {
    /// Fields named in full: `device.attributes['domain'].name`.
    fields: BTreeSet<(Section, String, String)>,
    /// Domains that are indexed by a literal.
    domains: BTreeSet<String>,
    /// The device, or a section, is used in some other way: everything counts.
    whole: bool,
    /// A section is used otherwise than by index (`'d' in device.attributes`): a domain that is made
    /// up would be seen.
    sections_seen: bool,
}

impl Reach {
    /// What the expression looks at. An error where kube-cel would answer otherwise than Kubernetes:
    /// a field of something that has none is `false` there, and an error in Kubernetes.
    pub(super) fn of(expression: &Expr) -> Result<Self, String> {
        let mut reach = Self::default();
        reach.walk(expression)?;
        Ok(reach)
    }

    /// Domains that must exist, if only as empty maps.
    pub(super) fn domains(&self) -> impl Iterator<Item = &str> {
        self.domains
            .iter()
            .filter(|_| !self.sections_seen)
            .map(String::as_str)
    }

    /// Whether it reads something that every device has of its own.
    pub(super) fn reads_own(&self) -> bool {
        let mut fields = self.fields.iter();
        self.whole || fields.any(|(_, _, name)| is_own(name))
    }

    /// Whether it may read the attribute or capacity of that name, with its domain or in the driver's.
    pub(super) fn reads(&self, driver: &str, name: &str) -> bool {
        let (domain, name) = name.split_once('/').unwrap_or((driver, name));
        let mut fields = self.fields.iter();
        self.whole || fields.any(|(_, of, field)| of == domain && field == name)
    }

    /// Writes all that is looked at. Equal text, equal verdict.
    pub(super) fn write_signature(&self, driver: &str, device: &Device, text: &mut String) {
        if self.whole {
            let all = (
                &device.attributes,
                &device.capacity,
                device.allow_multiple_allocations,
            );
            text.push_str(&serde_json::to_string(&all).unwrap_or_default());
            return;
        }
        for (section, domain, name) in &self.fields {
            text.push('\t');
            match section {
                Section::Attributes => {
                    let attribute = find(device.attributes.as_ref(), driver, domain, name);
                    text.push_str(&attribute.map(attribute_text).unwrap_or_default());
                }
                Section::Capacity => {
                    let amount = find(device.capacity.as_ref(), driver, domain, name);
                    text.push_str(amount.map_or("", |amount| amount.value.0.as_str()));
                }
            }
        }
    }

    fn walk(&mut self, expression: &Expr) -> Result<(), String> {
        if let Expr::Select(select) = expression {
            if let Some((section, domain)) = domain_of(&select.operand.expr) {
                self.domains.insert(domain.clone());
                self.fields.insert((section, domain, select.field.clone()));
                return Ok(());
            }
            if is_device(&select.operand.expr) {
                return self.select_of_device(&select.field);
            }
            if !matches!(select.operand.expr, Expr::Ident(_)) {
                return Err(format!(
                    "{} is a field of something that has none",
                    select.field
                ));
            }
        }
        if domain_of(expression).is_some() || is_device(expression) {
            self.whole = true;
            self.sections_seen |= is_device(expression);
        }
        if let Some((_, domain)) = domain_of(expression) {
            self.domains.insert(domain);
            return Ok(());
        }
        self.walk_parts(expression)
    }

    fn select_of_device(&mut self, field: &str) -> Result<(), String> {
        match field {
            // Part of every signature.
            "driver" => Ok(()),
            "attributes" | "capacity" => {
                self.whole = true;
                self.sections_seen = true;
                Ok(())
            }
            "allowMultipleAllocations" => {
                self.whole = true;
                Ok(())
            }
            other => Err(format!("a device has no field {other}")),
        }
    }

    fn walk_parts(&mut self, expression: &Expr) -> Result<(), String> {
        match expression {
            Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Ok(()),
            Expr::Call(call) => call
                .target
                .iter()
                .map(AsRef::as_ref)
                .chain(&call.args)
                .try_for_each(|part| self.walk(&part.expr)),
            Expr::Comprehension(comprehension) => [
                &comprehension.iter_range,
                &comprehension.accu_init,
                &comprehension.loop_cond,
                &comprehension.loop_step,
                &comprehension.result,
            ]
            .into_iter()
            .try_for_each(|part: &IdedExpr| self.walk(&part.expr)),
            Expr::List(list) => list
                .elements
                .iter()
                .try_for_each(|part| self.walk(&part.expr)),
            Expr::Select(select) => self.walk(&select.operand.expr),
            Expr::Map(map) => self.walk_entries(map.entries.iter().map(|entry| &entry.expr)),
            Expr::Struct(fields) => {
                self.walk_entries(fields.entries.iter().map(|entry| &entry.expr))
            }
        }
    }

    fn walk_entries<'a>(
        &mut self,
        entries: impl Iterator<Item = &'a EntryExpr>,
    ) -> Result<(), String> {
        for entry in entries {
            match entry {
                EntryExpr::StructField(field) => self.walk(&field.value.expr)?,
                EntryExpr::MapEntry(entry) => {
                    self.walk(&entry.key.expr)?;
                    self.walk(&entry.value.expr)?;
                }
            }
        }
        Ok(())
    }
}

fn is_device(expression: &Expr) -> bool {
    matches!(expression, Expr::Ident(name) if name == "device")
}

/// `device.attributes['domain']` or `device.capacity['domain']`.
fn domain_of(expression: &Expr) -> Option<(Section, String)> {
    let Expr::Call(call) = expression else {
        return None;
    };
    let [of, Expr::Literal(LiteralValue::String(domain))] = call
        .args
        .iter()
        .map(|argument| &argument.expr)
        .collect::<Vec<_>>()[..]
    else {
        return None;
    };
    let Expr::Select(section) = of else {
        return None;
    };
    if call.func_name != operators::INDEX || !is_device(&section.operand.expr) {
        return None;
    }
    let section = match section.field.as_str() {
        "attributes" => Section::Attributes,
        "capacity" => Section::Capacity,
        _ => return None,
    };
    Some((section, domain.inner().to_owned()))
}

/// A value by its qualified name; one without domain stands in the driver's.
fn find<'a, V>(
    values: Option<&'a std::collections::BTreeMap<String, V>>,
    driver: &str,
    domain: &str,
    name: &str,
) -> Option<&'a V> {
    let values = values?;
    values
        .get(&format!("{domain}/{name}"))
        .or_else(|| values.get(name).filter(|_| domain == driver))
}

fn attribute_text(attribute: &DeviceAttribute) -> String {
    serde_json::to_string(attribute).unwrap_or_default()
}
