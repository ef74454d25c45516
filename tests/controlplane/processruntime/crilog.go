package processruntime

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// longestLogLine is where the runtimes of production split a line.
const longestLogLine = 16 * 1024

// containerLog writes a container's output in the CRI log format, which kubelet and kubectl read:
//
//	2026-01-02T03:04:05.678901234Z stdout F a whole line, or the last part of one
//	2026-01-02T03:04:05.678901234Z stderr P a part of a long line
type containerLog struct {
	path string

	mutex sync.Mutex
	file  *os.File
}

// openContainerLog opens the log; with an empty path the output is thrown away, as CRI says.
func openContainerLog(path string) (*containerLog, error) {
	l := &containerLog{path: path}
	if path == "" {
		return l, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return l, l.reopen()
}

// reopen starts the file anew after the kubelet has moved it away (log rotation).
func (l *containerLog) reopen() error {
	if l.path == "" {
		return nil
	}
	file, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.file != nil {
		l.file.Close()
	}
	l.file = file
	return nil
}

func (l *containerLog) close() {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.file != nil {
		l.file.Close()
		l.file = nil
	}
}

// follow copies one stream until its end. Output that cannot be written is dropped: a full disk must
// not block the container.
func (l *containerLog) follow(stream string, output io.Reader) {
	reader := bufio.NewReaderSize(output, longestLogLine)
	for {
		line, err := reader.ReadSlice('\n')
		switch {
		case err == nil:
			l.write(stream, "F", line[:len(line)-1])
		case errors.Is(err, bufio.ErrBufferFull):
			l.write(stream, "P", line)
		default:
			if len(line) > 0 {
				l.write(stream, "F", line)
			}
			return
		}
	}
}

func (l *containerLog) write(stream, tag string, content []byte) {
	// Nanoseconds with all nine digits: readers cut by the fixed width.
	line := time.Now().UTC().AppendFormat(nil, "2006-01-02T15:04:05.000000000Z07:00")
	line = append(line, ' ')
	line = append(line, stream...)
	line = append(line, ' ')
	line = append(line, tag...)
	line = append(line, ' ')
	line = append(line, content...)
	line = append(line, '\n')
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.file != nil {
		_, _ = l.file.Write(line)
	}
}
