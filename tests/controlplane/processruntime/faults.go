package processruntime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// faults are failures on demand. A test writes them to STATE_DIR/faults.json (to another name first,
// then a rename); they are in force from the next call on, and gone when the file is gone:
//
//	{
//	  "missingImage": [{"image": "example.invalid/rank:2", "message": "manifest unknown"}],
//	  "refuseCreate": [{"pod": "train-", "message": "no space left on device"}],
//	  "delayStart":   [{"pod": "train-3", "seconds": 2.5}],
//	  "hangStop":     [{"pod": "train-0"}]
//	}
//
// "pod" is a prefix of the pod's name, "image" one of the image's; the empty one fits all. missingImage fails PullImage,
// and ImageStatus says that the image is not there. refuseCreate fails CreateContainer.
// delayStart makes StartContainer wait first. hangStop makes StopContainer, StopPodSandbox and the
// Remove calls of a running container wait, with the process left alone, until the fault is gone or the caller gives up.
type faults struct {
	MissingImage []fault `json:"missingImage"`
	RefuseCreate []fault `json:"refuseCreate"`
	DelayStart   []fault `json:"delayStart"`
	HangStop     []fault `json:"hangStop"`
}

type fault struct {
	Pod     string  `json:"pod"`
	Image   string  `json:"image"`
	Message string  `json:"message"`
	Seconds float64 `json:"seconds"`
}

// readFaults reads the file anew. A file that cannot be understood is an error of the call: a test
// whose fault silently does not happen would prove nothing.
func readFaults(path string) (faults, error) {
	var result faults
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return result, nil
	}
	if err != nil {
		return result, err
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&result); err != nil {
		return result, fmt.Errorf("%s: %w; it may hold missingImage, refuseCreate, delayStart and hangStop, each a list of {pod, image, message, seconds}", path, err)
	}
	return result, nil
}

func find(list []fault, pod string) *fault {
	for i := range list {
		if strings.HasPrefix(pod, list[i].Pod) {
			return &list[i]
		}
	}
	return nil
}

// missingImage is the error of pulling an image, if it is missing.
func missingImage(path, image string) error {
	current, err := readFaults(path)
	if err != nil {
		return err
	}
	for _, f := range current.MissingImage {
		if strings.HasPrefix(image, f.Image) {
			if f.Message == "" {
				return fmt.Errorf("missing on demand (image name prefix %q)", f.Image)
			}
			return errors.New(f.Message)
		}
	}
	return nil
}

// refusal is the error of a CreateContainer that is to fail, if it is.
func (r *Runtime) refusal(pod string) error {
	current, err := readFaults(r.faultsPath)
	if err != nil {
		return err
	}
	if f := find(current.RefuseCreate, pod); f != nil {
		if f.Message == "" {
			return fmt.Errorf("creation refused on demand (pod name prefix %q)", f.Pod)
		}
		return errors.New(f.Message)
	}
	return nil
}

func (r *Runtime) delayStart(ctx context.Context, pod string) error {
	current, err := readFaults(r.faultsPath)
	if err != nil {
		return err
	}
	f := find(current.DelayStart, pod)
	if f == nil {
		return nil
	}
	return sleep(ctx, time.Duration(f.Seconds*float64(time.Second)))
}

func (r *Runtime) hangStop(ctx context.Context, pod string) error {
	for {
		current, err := readFaults(r.faultsPath)
		if err != nil {
			return err
		}
		if find(current.HangStop, pod) == nil {
			return nil
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, duration time.Duration) error {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
