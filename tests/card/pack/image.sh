# Sourced by pack.sh: containerd's configuration, and its directory with the one image in it, so that nothing is imported over there.
# The image has glibc, a shell, ldconfig and the program gpu, in the usual merged tree.

image=$work/image
libraries=$image/usr/lib/x86_64-linux-gnu
mkdir -p "$image"/usr/{bin,sbin,lib64} "$libraries" "$image"/etc/ld.so.conf.d "$image"/{tmp,var/cache/ldconfig}
chmod 1777 "$image/tmp"
for directory in bin sbin lib lib64; do ln -s "usr/$directory" "$image/$directory"; done
for library in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 libgcc_s.so.1 librt.so.1; do
    cp -L "/lib/x86_64-linux-gnu/$library" "$libraries/"
done
cp -L /lib64/ld-linux-x86-64.so.2 "$image/usr/lib64/"
cp "$tree/bin/gpu" /usr/bin/busybox "$image/usr/bin/"
for applet in $(busybox --list); do
    case $applet in busybox | ldconfig) ;; *) [ -e "$image/usr/bin/$applet" ] || ln -s busybox "$image/usr/bin/$applet" ;; esac
done
install -m 755 /sbin/ldconfig "$image/usr/sbin/ldconfig"
echo 'root:x:0:0:root:/:/bin/sh' >"$image/etc/passwd"
printf '/lib/x86_64-linux-gnu\n/usr/lib/x86_64-linux-gnu\n' >"$image/etc/ld.so.conf.d/x86_64-linux-gnu.conf"
echo 'include /etc/ld.so.conf.d/*.conf' >"$image/etc/ld.so.conf"
/sbin/ldconfig -r "$image"

archive=$work/archive
mkdir "$archive"
tar --sort=name --mtime=@0 --owner=0 --group=0 -C "$image" -cf "$archive/layer.tar" .
digest=$(sha256sum "$archive/layer.tar" | cut -c1-64)
cat >"$archive/config.json" <<J
{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:$digest"]},
 "config":{"Cmd":["/bin/sh","-c","trap 'exit 0' TERM; sleep 2000000 & wait"],
           "Env":["PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin","NVIDIA_VISIBLE_DEVICES=all"]}}
J
echo '[{"Config":"config.json","RepoTags":["localhost/workload:1"],"Layers":["layer.tar"]}]' >"$archive/manifest.json"
tar -C "$archive" -cf "$work/workload.tar" manifest.json config.json layer.tar

cp "$here/pack/containerd.toml" "$tree/"
unshare --mount --net --pid --fork --kill-child --mount-proc \
    env PATH="$containers:$PATH" bash "$here/pack/import.sh" "$work/workload.tar" "$tree"
