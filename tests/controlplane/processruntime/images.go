package processruntime

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sort"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// imageService says that every image exists unless a fault says that it is missing, and remembers the names that it was
// asked for, because the kubelet lists them.
type imageService struct {
	runtimeapi.UnimplementedImageServiceServer
	stateDirectory string
	faultsPath     string
	known          *knownImages
}

type knownImages struct {
	mutex sync.Mutex
	names map[string]string // by id
}

func newImageService(stateDirectory, faultsPath string) imageService {
	return imageService{stateDirectory: stateDirectory, faultsPath: faultsPath, known: &knownImages{names: map[string]string{}}}
}

// imageID is the same for the same name always. The kubelet also asks by id.
func imageID(name string) string {
	if strings.HasPrefix(name, "sha256:") {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (k *knownImages) image(name string) *runtimeapi.Image {
	id := imageID(name)
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if id != name {
		k.names[id] = name
	}
	return describeImage(id, k.names[id])
}

// name is the name of an image that is asked for by name or by id.
func (k *knownImages) name(image string) string {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	if name, isID := k.names[image]; isID {
		return name
	}
	return image
}

func describeImage(id, name string) *runtimeapi.Image {
	image := &runtimeapi.Image{
		Id: id, Size: 1 << 20,
		// A user that is not root, so that pods with runAsNonRoot pass the kubelet's check.
		Uid: &runtimeapi.Int64Value{Value: 65532},
	}
	switch {
	case strings.Contains(name, "@"):
		image.RepoDigests = []string{name}
	case name != "":
		image.RepoTags = []string{name}
	}
	return image
}

func (s imageService) ImageStatus(_ context.Context, request *runtimeapi.ImageStatusRequest) (*runtimeapi.ImageStatusResponse, error) {
	name := request.GetImage().GetImage()
	if missingImage(s.faultsPath, s.known.name(name)) != nil {
		// An answer without an image: it is not there.
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: s.known.image(name)}, nil
}

func (s imageService) PullImage(_ context.Context, request *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	name := request.GetImage().GetImage()
	if err := missingImage(s.faultsPath, s.known.name(name)); err != nil {
		return nil, err
	}
	return &runtimeapi.PullImageResponse{ImageRef: s.known.image(name).Id}, nil
}

func (s imageService) RemoveImage(_ context.Context, request *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	s.known.mutex.Lock()
	defer s.known.mutex.Unlock()
	delete(s.known.names, imageID(request.GetImage().GetImage()))
	return &runtimeapi.RemoveImageResponse{}, nil
}

func (s imageService) ListImages(_ context.Context, request *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	wanted := request.GetFilter().GetImage().GetImage()
	s.known.mutex.Lock()
	defer s.known.mutex.Unlock()
	response := &runtimeapi.ListImagesResponse{}
	for id, name := range s.known.names {
		if wanted == "" || wanted == name || wanted == id {
			response.Images = append(response.Images, describeImage(id, name))
		}
	}
	sort.Slice(response.Images, func(a, b int) bool { return response.Images[a].Id < response.Images[b].Id })
	return response, nil
}

// ImageFsInfo names the state directory's file system; next to nothing is used of it.
func (s imageService) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	usage := []*runtimeapi.FilesystemUsage{{
		Timestamp:  time.Now().UnixNano(),
		FsId:       &runtimeapi.FilesystemIdentifier{Mountpoint: s.stateDirectory},
		UsedBytes:  &runtimeapi.UInt64Value{Value: 1 << 20},
		InodesUsed: &runtimeapi.UInt64Value{Value: 1},
	}}
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: usage, ContainerFilesystems: usage}, nil
}
