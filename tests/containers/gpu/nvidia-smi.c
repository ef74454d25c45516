// Stands for the driver's nvidia-smi, which finds NVML by its name: proof that programs of the host run in the container,
// and that the loader there knows the driver's libraries.
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == NULL || dlsym(library, "nvmlInit_v2") == NULL) {
        printf("nvidia-smi: %s\n", dlerror());
        return 1;
    }
    puts("nvidia-smi: NVML is there");
    return 0;
}
