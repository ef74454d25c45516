// Stands for NVIDIA's libcuda.so.1: finds GPUs as that does, by opening device nodes.
//
// There is no driver behind the nodes, so a node that may be opened answers ENXIO. One that is not there answers ENOENT,
// and one that the container's cgroup forbids EPERM: these are no GPUs of this container.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, OPERATING_SYSTEM = 304 };
enum { MOST_GPUS = 64 };

static int minors[MOST_GPUS];
static int count = -1;

static int may_open(const char *path) {
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file >= 0) {
        close(file);
        return 1;
    }
    return errno == ENXIO;
}

int cuInit(unsigned flags) {
    if (flags != 0) {
        return INVALID_VALUE;
    }
    // Without unified memory the real one fails, too.
    if (!may_open("/dev/nvidiactl") || !may_open("/dev/nvidia-uvm")) {
        return OPERATING_SYSTEM;
    }
    count = 0;
    for (int minor = 0; minor < MOST_GPUS; minor++) {
        char path[32];
        snprintf(path, sizeof path, "/dev/nvidia%d", minor);
        if (may_open(path)) {
            minors[count++] = minor;
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
    snprintf(name, (size_t)length, "GPU %d", minors[device]);
    return SUCCESS;
}
