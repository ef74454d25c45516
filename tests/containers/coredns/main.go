// Command coredns is CoreDNS with only the plugins that a cluster's own names need. The full one
// compiles the libraries of several clouds.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() {
	// The order in which a query passes them; a plugin that is not named is not known.
	dnsserver.Directives = []string{"ready", "errors", "cache", "kubernetes"}
	coremain.Run()
}
