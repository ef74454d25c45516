// Behind tests/containers/gpu/libcuda.c: what the program `gpu` asks for besides. A kernel always faults.
#include <stddef.h>

enum { ILLEGAL_ADDRESS = 700 };

int cuDeviceGet(int *device, int ordinal) {
    if (count <= ordinal) {
        return INVALID_DEVICE;
    }
    *device = ordinal;
    return SUCCESS;
}

int cuCtxCreate_v2(void **context, unsigned flags, int device) {
    (void)flags;
    (void)device;
    *context = &count;
    return SUCCESS;
}

int cuCtxDestroy_v2(void *context) { return context == &count ? SUCCESS : INVALID_VALUE; }

int cuModuleLoadData(void **module, const void *image) {
    *module = &count;
    return image == NULL ? INVALID_VALUE : SUCCESS;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = &count;
    return module == &count && name != NULL ? SUCCESS : INVALID_VALUE;
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                   unsigned shared, void *stream, void **arguments, void **extra) {
    (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
    (void)shared, (void)stream, (void)arguments, (void)extra;
    return function == &count ? SUCCESS : INVALID_VALUE;
}

int cuCtxSynchronize(void) {
    // Time in which mock/inside.sh sees who does it.
    sleep(1);
    return ILLEGAL_ADDRESS;
}
