/* A libcuda.so.1 that tells of the machine in the environment:
   STUB_CUDA 12020, STUB_INIT 0, STUB_DEVICES "NAME:SM:MIB;...", STUB_SICK crash or hang. */
#include <signal.h>
#include <unistd.h>

#include "fields.h"

int cuDriverGetVersion(int *version) {
  *version = number("STUB_CUDA", 12020);
  return 0;
}

#ifndef NO_INIT
int cuInit(unsigned flags) {
  (void)flags;
  const char *sick = given("STUB_SICK", "");
  if (!strcmp(sick, "crash")) raise(SIGSEGV);
  if (!strcmp(sick, "hang")) pause();
  return number("STUB_INIT", 0);
}
#endif

#ifndef OLD
int cuGetErrorString(int code, const char **text) {
  *text = code == 804 ? "forward compatibility was attempted on non supported HW" : NULL;
  return *text ? 0 : 1;
}
#endif

static int field(int device, int index, char *out, size_t size) {
  char row[512];
  return part(given("STUB_DEVICES", ""), ';', device, row, sizeof row) && part(row, ':', index, out, size);
}

int cuDeviceGetCount(int *found) {
  *found = count(given("STUB_DEVICES", ""), ';');
  return 0;
}

int cuDeviceGet(int *device, int index) {
  *device = index;
  return 0;
}

int cuDeviceGetName(char *name, int size, int device) { return field(device, 0, name, (size_t)size) ? 0 : 101; }

int cuDeviceGetAttribute(int *value, int which, int device) {
  char text[32];
  if (!field(device, 1, text, sizeof text)) return 101;
  *value = which == 75 ? atoi(text) / 10 : atoi(text) % 10;
  return 0;
}

#ifndef OLD
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  char text[32];
  if (!field(device, 2, text, sizeof text)) return 101;
  *bytes = (size_t)atoll(text) << 20;
  return 0;
}
#endif
