export async function buildRootFileSystem(
  folder: string,
  tarball: string,
  progress: (text: string) => void,
): Promise<string> {
  progress('building a root file system');
  throw new Error(`not written yet: ${folder} ${tarball}`);
}
