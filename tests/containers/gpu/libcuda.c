// Stands for NVIDIA's libcuda.so.1: finds GPUs as that does, by opening device nodes.
//
// There is no driver behind the nodes, so a node that may be opened answers ENXIO. One that is not there answers ENOENT,
// and one that the container's cgroup forbids EPERM: these are no GPUs of this container.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, OPERATING_SYSTEM = 304 };
enum { MOST_GPUS = 64, MOST_DEVICES = 512 };
// What a GPU can be cut into at most, and how the kernel's module numbers the capabilities of it.
enum { GPU_INSTANCES = 15, COMPUTE_INSTANCES = 8, FIRST_CAPABILITY = 3 };

// A GPU, or a slice of one.
struct device {
    int gpu, gpu_instance, compute_instance;
};

static struct device devices[MOST_DEVICES];
static int count = -1;

static int may_open(const char *path, int access) {
    int file = open(path, access | O_CLOEXEC);
    if (file >= 0) {
        close(file);
        return 1;
    }
    return errno == ENXIO;
}

static int has_capability(int minor) {
    char path[48];
    snprintf(path, sizeof path, "/dev/nvidia-caps/nvidia-cap%d", minor);
    return may_open(path, O_RDONLY);
}

static void found(int gpu, int gpu_instance, int compute_instance) {
    if (count < MOST_DEVICES) {
        devices[count++] = (struct device){gpu, gpu_instance, compute_instance};
    }
}

// The slices of a GPU that this container may use. Where it may use one, the GPU is cut, and is no device itself.
static int find_slices(int gpu) {
    int before = count;
    for (int gpu_instance = 0; gpu_instance < GPU_INSTANCES; gpu_instance++) {
        int minor = FIRST_CAPABILITY + (gpu * GPU_INSTANCES + gpu_instance) * (1 + COMPUTE_INSTANCES);
        if (!has_capability(minor)) {
            continue;
        }
        for (int compute_instance = 0; compute_instance < COMPUTE_INSTANCES; compute_instance++) {
            if (has_capability(minor + 1 + compute_instance)) {
                found(gpu, gpu_instance, compute_instance);
            }
        }
    }
    return count - before;
}

int cuInit(unsigned flags) {
    if (flags != 0) {
        return INVALID_VALUE;
    }
    // Without unified memory the real one fails, too.
    if (!may_open("/dev/nvidiactl", O_RDWR) || !may_open("/dev/nvidia-uvm", O_RDWR)) {
        return OPERATING_SYSTEM;
    }
    count = 0;
    for (int minor = 0; minor < MOST_GPUS; minor++) {
        char path[32];
        snprintf(path, sizeof path, "/dev/nvidia%d", minor);
        if (may_open(path, O_RDWR) && find_slices(minor) == 0) {
            found(minor, -1, -1);
        }
    }
    return count > 0 ? SUCCESS : NO_DEVICE;
}

int cuDeviceGetCount(int *found) {
    if (count < 0) {
        return NOT_INITIALIZED;
    }
    *found = count;
    return SUCCESS;
}

int cuDeviceGetName(char *name, int length, int device) {
    if (device < 0 || device >= count) {
        return INVALID_DEVICE;
    }
    struct device it = devices[device];
    if (it.gpu_instance < 0) {
        snprintf(name, (size_t)length, "GPU %d", it.gpu);
    } else {
        snprintf(name, (size_t)length, "GPU %d slice %d/%d", it.gpu, it.gpu_instance, it.compute_instance);
    }
    return SUCCESS;
}
