//! Types of objects that are of the kind of another type.

/// Has a type be of the kind of the type that it is made of, `K`: an object of that kind as far as it was read, say. After the type stands
/// where its metadata is, once to be read and once to be changed.
#[macro_export]
macro_rules! of_kind {
    ($type:ident<$kind:ident>, |$object:ident| $metadata:expr, $metadata_mut:expr) => {
        impl<$kind: ::kube::Resource> ::kube::Resource for $type<$kind> {
            type DynamicType = $kind::DynamicType;
            type Scope = $kind::Scope;

            fn kind(of: &Self::DynamicType) -> ::std::borrow::Cow<'_, str> {
                $kind::kind(of)
            }

            fn group(of: &Self::DynamicType) -> ::std::borrow::Cow<'_, str> {
                $kind::group(of)
            }

            fn version(of: &Self::DynamicType) -> ::std::borrow::Cow<'_, str> {
                $kind::version(of)
            }

            fn plural(of: &Self::DynamicType) -> ::std::borrow::Cow<'_, str> {
                $kind::plural(of)
            }

            fn meta(&self) -> &::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                let $object = self;
                $metadata
            }

            fn meta_mut(
                &mut self,
            ) -> &mut ::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                let $object = self;
                $metadata_mut
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{api::batch::v1::Job, apimachinery::pkg::apis::meta::v1::ObjectMeta};
    use kube::Resource;

    struct Named<K>(ObjectMeta, std::marker::PhantomData<K>);

    crate::of_kind!(Named<K>, |named| &named.0, &mut named.0);

    #[test]
    fn such_a_type_is_found_where_the_other_is_and_has_metadata_of_its_own() {
        let of = |path: fn(&(), Option<&str>) -> String| path(&(), Some("ml"));
        assert_eq!(of(Named::<Job>::url_path), of(Job::url_path));
        assert_eq!(Named::<Job>::kind(&()), "Job");
        let mut named = Named::<Job>(ObjectMeta::default(), std::marker::PhantomData);
        named.meta_mut().name = Some("a".to_owned());
        assert_eq!(named.meta().name.as_deref(), Some("a"));
    }
}
