// What a CUDA program does first: it looks for libcuda.so.1 by nothing but its name, and counts the GPUs. It is linked
// to the C library alone, and prints `cuda: GPU 3, GPU 5 slice 9/0` (GPU instance 9, compute
// instance 0), or what failed.
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        printf("cuda: %s\n", dlerror());
        return 0;
    }
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
    int (*get_count)(int *) = (int (*)(int *))dlsym(library, "cuDeviceGetCount");
    int (*get_name)(char *, int, int) = (int (*)(char *, int, int))dlsym(library, "cuDeviceGetName");
    if (init == NULL || get_count == NULL || get_name == NULL) {
        puts("cuda: the library lacks a function");
        return 1;
    }
    int result = init(0), count = 0;
    if (result != 0 || (result = get_count(&count)) != 0) {
        printf("cuda: error %d\n", result);
        return 0;
    }
    printf("cuda:");
    for (int device = 0; device < count; device++) {
        char name[32] = "";
        get_name(name, sizeof name, device);
        printf("%s %s", device > 0 ? "," : "", name);
    }
    puts("");
    return 0;
}
