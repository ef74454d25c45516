package processruntime

import (
	"fmt"
	"net/netip"
)

// addressPool gives each sandbox a loopback address of its own: PREFIX.1 to PREFIX.254. On Linux all
// of 127.0.0.0/8 is local without any configuration, so that pods of many nodes can listen on the same
// port and still reach one another.
type addressPool struct {
	prefix string
	used   map[string]bool
	last   int
}

func newAddressPool(prefix string) (*addressPool, error) {
	first, err := netip.ParseAddr(prefix + ".1")
	if err != nil || !first.Is4() || !first.IsLoopback() || prefix == "127.0.0" {
		return nil, fmt.Errorf("--address-prefix=%q: give the first three numbers of a loopback network of this node's own, 127.x.y but not 127.0.0, for example 127.20.1", prefix)
	}
	return &addressPool{prefix: prefix, used: map[string]bool{}}, nil
}

// take goes round the range instead of taking the lowest free address, so that the address of a pod
// that has just died is not at once that of another.
func (p *addressPool) take() (string, error) {
	for range 254 {
		p.last = p.last%254 + 1
		address := fmt.Sprintf("%s.%d", p.prefix, p.last)
		if !p.used[address] {
			p.used[address] = true
			return address, nil
		}
	}
	return "", fmt.Errorf("all 254 addresses of %s.0/24 are in use by live pods; this runtime holds no more pods than that", p.prefix)
}

func (p *addressPool) giveBack(address string) {
	delete(p.used, address)
}
