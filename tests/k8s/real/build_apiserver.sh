#!/bin/bash
# Builds kube-apiserver and kube-controller-manager 1.20.2 from Debian bookworm's source package `kubernetes` with Debian's Go 1.19.
# Usage: build_apiserver.sh CACHE_FOLDER. Needs root for apt-get, 2 GB of disk and about nine minutes of CPU; 50 s where the cache is warm.
# No registry ships a built server; this source package is the last in Debian that holds the whole tree.
set -euo pipefail
mkdir -p "$1"
cache=$(cd "$1" && pwd)
package=kubernetes
version=1.20.5+really1.20.2-1.1+deb12u1
tarball=${package}_1.20.5+really1.20.2.orig.tar.gz

[ -x "$cache/bin/kube-apiserver" ] && [ -x "$cache/bin/kube-controller-manager" ] && exit 0

apt-get install -y -qq --no-install-recommends golang-go golang-github-modern-go-reflect2-dev etcd-server >/dev/null

# Source packages are not in the machine's apt lists: the machine's own archive once more, as deb-src, in a private folder,
# so that the system's apt setup stays as it is.
fetch_source() {
  local archive
  archive=$(cat /etc/apt/sources.list.d/*.sources 2>/dev/null | awk '/^URIs:/{print $2; exit}')
  [ -n "$archive" ] || archive=$(awk '$1=="deb"{for(i=2;i<=NF;i++) if ($i ~ /^http/) {print $i; exit}}' /etc/apt/sources.list)
  mkdir -p "$cache"/apt/{lists/partial,archives/partial,parts}
  echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive bookworm main" > "$cache/apt/sources.list"
  local private=(
    -o "Dir::Etc::sourcelist=$cache/apt/sources.list" -o "Dir::Etc::sourceparts=$cache/apt/parts"
    -o "Dir::State::lists=$cache/apt/lists" -o "Dir::Cache=$cache/apt" -o APT::Sandbox::User=root
  )
  apt-get "${private[@]}" update -qq
  (cd "$cache" && apt-get "${private[@]}" source --download-only -qq "$package=$version")
}

[ -f "$cache/$tarball" ] || fetch_source
tree=$cache/go/src/k8s.io/kubernetes
rm -rf "$tree"
mkdir -p "$tree"
tar xzf "$cache/$tarball" --strip-components=1 -C "$tree"

# The tree's own reflect2 1.0.1 walks maps in a way that crashes under Go 1.18 and later (any CRD request): Debian's 1.0.2 instead.
reflect2=$tree/vendor/github.com/modern-go/reflect2
rm -rf "$reflect2"
mkdir "$reflect2"
cp /usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} "$reflect2"/
rm -f "$reflect2"/*_test.go

# Without a git checkout the server would call itself v0.0.0, which Helm's kubeVersion gate refuses.
sed -i -E 's/^\tgitVersion .*/\tgitVersion string = "v1.20.2"/; s/^\tgitMajor .*/\tgitMajor string = "1"/; s/^\tgitMinor .*/\tgitMinor string = "20"/' \
  "$tree"/staging/src/k8s.io/{component-base/version,client-go/pkg/version}/base.go

export GOPATH=$cache/go GO111MODULE=off GOCACHE=$cache/gocache CGO_ENABLED=0 GOFLAGS= GOPROXY=off
cd "$tree"
go build -o "$cache/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
vendored="api apimachinery apiextensions-apiserver apiserver kube-aggregator metrics component-base cloud-provider"
vendored="$vendored kube-controller-manager kube-proxy kube-scheduler kubelet client-go controller-manager"
packages=$(cd "$tree" && grep -rl --include=*.go '+k8s:openapi-gen=' cmd pkg plugin $(printf 'vendor/k8s.io/%s/ ' $vendored) \
  | xargs -n1 dirname | LC_ALL=C sort -u | sed 's#^#k8s.io/kubernetes/#' | paste -sd,)
"$cache/openapi-gen" --logtostderr -i "$packages" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
  -h hack/boilerplate/boilerplate.generatego.txt -r /dev/null --output-base "$GOPATH/src"
mkdir -p "$cache/bin"
for command in kube-apiserver kube-controller-manager; do
  go build -ldflags '-s -w' -o "$cache/bin/$command.new" "k8s.io/kubernetes/cmd/$command"
  mv "$cache/bin/$command.new" "$cache/bin/$command"
done
ls -l "$cache/bin"
