//! Objects of older versions of the resource API, in the words of `v1`.

use serde_json::Value;

/// Kinds of `resource.k8s.io` that older versions have, too.
const KINDS: [&str; 5] = [
    "DeviceClass",
    "DeviceTaintRule",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "ResourceSlice",
];

/// Says in `resource.k8s.io/v1` what an object says in `v1beta1` or `v1beta2`, or a DeviceTaintRule in `v1alpha3`. Others stay as they are.
///
/// `v1beta2` has the fields of `v1`. In `v1beta1` a device has its attributes and capacity in `basic`, and a request
/// names its class itself instead of in `exactly`.
pub(super) fn modernize(object: &mut Value) {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    if !KINDS.contains(&kind.as_str()) {
        return;
    }
    match object["apiVersion"].as_str() {
        Some("resource.k8s.io/v1beta2") => {}
        // It could select by what later versions do not: left out, it would select more.
        Some("resource.k8s.io/v1alpha3") if kind == "DeviceTaintRule" => {
            let selector = &object["spec"]["deviceSelector"];
            if ["deviceClassName", "selectors"]
                .iter()
                .any(|field| !selector[*field].is_null())
            {
                return;
            }
        }
        Some("resource.k8s.io/v1beta1") => {
            let devices = match kind.as_str() {
                "ResourceSlice" => "/spec/devices",
                "ResourceClaim" => "/spec/devices/requests",
                "ResourceClaimTemplate" => "/spec/spec/devices/requests",
                _ => "",
            };
            let list = object.pointer_mut(devices).and_then(Value::as_array_mut);
            for item in list.into_iter().flatten() {
                if kind == "ResourceSlice" {
                    lift_basic(item);
                } else {
                    lower_request(item);
                }
            }
        }
        _ => return,
    }
    object["apiVersion"] = "resource.k8s.io/v1".into();
}

fn lift_basic(device: &mut Value) {
    let Some(device) = device.as_object_mut() else {
        return;
    };
    if let Some(Value::Object(basic)) = device.remove("basic") {
        device.extend(basic);
    }
}

fn lower_request(request: &mut Value) {
    let Some(fields) = request.as_object_mut() else {
        return;
    };
    if fields.contains_key("firstAvailable") || !fields.contains_key("deviceClassName") {
        return;
    }
    let name = fields.remove("name");
    let exactly = Value::Object(std::mem::take(fields));
    fields.insert("exactly".to_owned(), exactly);
    fields.extend(name.map(|name| ("name".to_owned(), name)));
}
