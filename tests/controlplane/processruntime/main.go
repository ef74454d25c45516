package processruntime

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"google.golang.org/grpc"
)

// longestSocketPath is the kernel's limit, less the closing zero.
const longestSocketPath = 107

// Main is the program `process-runtime`; arguments[0] is its name. It does not return before SIGTERM.
func Main(arguments []string) {
	flags := flag.NewFlagSet(arguments[0], flag.ExitOnError)
	var options Options
	listen := flags.String("listen", "", "unix socket to serve CRI on, a path or unix://PATH")
	flags.StringVar(&options.CDIDirectory, "cdi-dir", "", "the node's CDI directory, the only one that is read")
	flags.StringVar(&options.StateDirectory, "state-dir", "", "directory for what must survive a restart; STATE_DIR/faults.json makes faults")
	flags.StringVar(&options.AddressPrefix, "address-prefix", "", "127.x.y: pods get the addresses 127.x.y.1 to 127.x.y.254")
	flags.StringVar(&options.Record, "record", "", "file that a line is appended to for each start and end of a container")
	flags.StringVar(&options.Uses, "uses", "", "directory with a file for each container that has device nodes, as long as it lives (optional)")
	flags.StringVar(&options.EtcdURL, "etcd", "", "URL of the cluster's etcd, whose revision each line of the record carries (optional)")
	flags.StringVar(&options.Node, "node", "", "node name in the record (optional)")
	_ = flags.Parse(arguments[1:]) // ExitOnError
	if flags.NArg() > 0 {
		fail(fmt.Errorf("%q is no flag; all arguments are flags, see --help", flags.Arg(0)))
	}
	log.SetFlags(log.LstdFlags | log.Lmicroseconds)
	if err := serve(*listen, options); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintf(os.Stderr, "process-runtime: %v\n", err)
	os.Exit(1)
}

func serve(socket string, options Options) error {
	// First of all, so that a signal never finds us half started with a container to lose.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)

	r, err := New(options)
	if err != nil {
		return err
	}
	listener, err := listenUnix(strings.TrimPrefix(socket, "unix://"))
	if err != nil {
		return errors.Join(err, r.Close())
	}
	server := grpc.NewServer()
	r.Register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	log.Printf("serving CRI on %s", listener.Addr())
	select {
	case err = <-served:
	case <-signals:
		server.Stop() // ends the calls that wait, too
	}
	return errors.Join(err, r.Close())
}

// listenUnix takes the place of a socket that nobody serves any more, but not of one in use.
func listenUnix(path string) (net.Listener, error) {
	if path == "" {
		return nil, errors.New("--listen is missing")
	}
	if len(path) > longestSocketPath {
		return nil, fmt.Errorf("--listen: %s has %d bytes, a unix socket's path at most %d: use a shorter directory", path, len(path), longestSocketPath)
	}
	if connection, err := net.Dial("unix", path); err == nil {
		connection.Close()
		return nil, fmt.Errorf("--listen: another program serves %s", path)
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("--listen: %s exists and is no socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return net.Listen("unix", path)
}
