# The program without CUDA. Version, license and address are those of Cargo.toml.
{
  lib,
  rustPlatform,
  installShellFiles,
}:
let
  inherit ((lib.importTOML ../../Cargo.toml).workspace) package;
in
rustPlatform.buildRustPackage {
  pname = "kiln";
  inherit (package) version;
  src = ../..;
  cargoLock.lockFile = ../../Cargo.lock;
  cargoBuildFlags = [
    "--package"
    "kiln-cli"
    "--bin"
    "kiln"
  ];
  buildType = "dist";
  # The tests need minutes and several gigabytes: .ci/run runs them.
  doCheck = false;
  nativeBuildInputs = [ installShellFiles ];
  postInstall = ''
    for shell in bash zsh fish; do
      $out/bin/kiln completions $shell > kiln.$shell
    done
    installShellCompletion --cmd kiln --bash kiln.bash --zsh kiln.zsh --fish kiln.fish
    $out/bin/kiln man > kiln.1
    installManPage kiln.1
  '';
  meta = {
    description = "Diffusion engine for GPUs and CPUs in one program";
    homepage = package.repository;
    license = [
      lib.licenses.mit
      lib.licenses.asl20
    ];
    mainProgram = "kiln";
    platforms = lib.platforms.linux ++ lib.platforms.darwin;
  };
}
